#!/bin/bash
# The user that the daemons run as, and the folders they may write.
set -euo pipefail
groupadd --gid 10001 cadre
useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin cadre
install -d -o cadre -g cadre -m 0750 /var/lib/cadre-coordinator
install -d -o cadre -g cadre -m 2770 /srv/cadre
