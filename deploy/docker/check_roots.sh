#!/bin/bash
# Where no container engine is at hand: takes the steps of the Dockerfile's
# runtime images in plain Debian roots (debootstrap, chroot) and starts the
# programs there as the images' user. Finds packages that a list lacks.
#
#   sudo deploy/docker/check_roots.sh BIN   BIN: folder with the three programs
#   sudo deploy/docker/check_roots.sh       builds them first
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "error: chroot needs root" >&2; exit 2; }
. tools/setup.sh
install_packages <(echo debootstrap)
work=$(mktemp -d "${TMPDIR:-/tmp}/cadre-roots.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
if [ $# -gt 0 ]; then out=$1; else
  out=$work/out
  deploy/docker/build.sh "$out"
fi

mirror=$(sed -n 's/^\(deb\|URIs:\) *\([^ ]*\).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -m 1 -v security || true)
debootstrap --variant=minbase bookworm "$work/base" "${mirror:-http://deb.debian.org/debian}" >"$work/log" 2>&1 ||
  { tail "$work/log" >&2; exit 1; }
# The machine's own way to its packages: mirrors, proxies.
cp -r /etc/apt/. "$work/base/etc/apt/"
cp /etc/resolv.conf "$work/base/etc/" 2>/dev/null || true

# image NAME PACKAGES PROGRAM...
image() {
  local name=$1 packages=$2 root=$work/$1 program
  shift 2
  cp -a "$work/base" "$root"
  cp deploy/docker/install.sh deploy/docker/user.sh "deploy/docker/$packages" "$root/tmp/"
  chroot "$root" /tmp/install.sh "/tmp/$packages"
  chroot "$root" /tmp/user.sh
  for program in "$@"; do
    install -m 755 "$out/$program" "$root/usr/bin/"
    chroot --userspec=10001:10001 "$root" "/usr/bin/$program" --version ||
      { echo "$name: $program does not start" >&2; exit 1; }
  done
  echo "$name: $(du -sm "$root" | cut -f1) MB"
}
image coordinator runtime_coordinator.txt cadre-coordinator cadre
image worker-cpu runtime_worker.txt cadre-worker
