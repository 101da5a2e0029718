#!/bin/bash
# install.sh FILE...: the Debian packages that the files list, one a line.
set -euo pipefail
# No process substitution: a build root may have no /dev/fd.
read -r -d '' -a packages <<<"$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@")" || true
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
rm -rf /var/lib/apt/lists/*
