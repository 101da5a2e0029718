#!/bin/bash
# Sourced by test.sh and quickstart.sh: installs missing Debian packages and
# sets `bazel_options` (disk cache, CUDA where nvcc is present).
#
#   . tools/setup.sh
#   install_packages tools/packages.txt

packages_in() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

# install_packages FILE...: what the files list and the machine lacks.
install_packages() {
  local missing=() package
  for package in $(packages_in "$@"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null |
      grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  echo "installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
      echo "error: run as root, or install sudo, to install: ${missing[*]}" >&2
      return 1
    }
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# set_bazel_options: headers of system libraries are not inputs of Bazel's
# actions, so each set of package versions gets a disk cache of its own.
set_bazel_options() {
  local stamp
  # shellcheck disable=SC2046
  stamp=$(dpkg-query -W -f='${Package} ${Version}\n' \
    $(packages_in tools/packages.txt) | sha256sum | cut -c1-16)
  bazel_options=(
    --config=ci
    --disk_cache="${CADRE_DISK_CACHE:-$HOME/.cache/cadre/bazel-$stamp}"
  )
  if [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    bazel_options+=(--config=cuda)
  fi
}
