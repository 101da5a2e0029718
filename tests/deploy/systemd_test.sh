#!/bin/bash
# The units: systemd finds nothing to say about them, their exposure stays under
# the bounds, the programs take the configurations and flags they name.
set -eu
runfiles=$PWD
cd "$(dirname "$(readlink -f WORKSPACE)")/deploy"
failed=0
fail() { echo "$*" >&2; failed=1; }

# ExecStart must name programs that exist.
units=$TEST_TMPDIR/units
mkdir -p "$units"
for unit in systemd/*.service; do
  sed -e "s|/usr/bin/cadre-coordinator|$runfiles/coordinator/cadre-coordinator|" \
    -e "s|/usr/bin/cadre-worker|$runfiles/worker/cadre-worker|" \
    "$unit" >"$units/$(basename "$unit")"
done
for unit in cadre-coordinator.service cadre-coordinator@a.service cadre-worker@0.service cadre-worker-cpu@0.service; do
  # Unknown keys are printed, and the exit code is 0 all the same.
  said=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no "$unit" 2>&1) || fail "$unit: verify failed"
  [ -z "$said" ] || fail "$unit: $said"
done
# exposure UNIT BOUND
exposure() {
  local level
  level=$(systemd-analyze security --offline=true "$units/$1" 2>&1 | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
  awk -v level="$level" -v bound="$2" 'BEGIN { exit !(level != "" && level + 0 <= bound) }' ||
    fail "$1: exposure ${level:-unknown}, at most $2 allowed"
  echo "$1: exposure $level"
}
exposure cadre-coordinator.service 2.0
exposure cadre-coordinator@.service 2.0
exposure cadre-worker@.service 3.0
exposure cadre-worker-cpu@.service 3.0

# Flags of the units, and the configurations, as the programs see them.
for name in coordinator coordinator-a coordinator-b; do
  "$runfiles/coordinator/cadre-coordinator" --config=configs/$name.textproto --check-config ||
    fail "$name.textproto is refused"
done
# Two that share a state without an election would be one that is refused it.
for name in coordinator-a coordinator-b; do
  grep -q '^election {' configs/$name.textproto || fail "$name.textproto: no election"
done
[ "$(diff configs/coordinator-a.textproto configs/coordinator-b.textproto | grep '^>' | grep -cvE '^> (listen|health_listen|metrics_listen|# One of two)')" = 0 ] ||
  fail "coordinator-a and -b differ in more than their addresses"
for name in worker worker-cpu; do
  "$runfiles/worker/cadre-worker" --config=configs/$name.textproto --index=3 --check-config >/dev/null ||
    fail "$name.textproto is refused"
done
for config in configs/*; do
  named=$(basename "$config" | sed 's/coordinator-[ab]/coordinator-%i/')
  grep -qrF "/etc/cadre/$named" systemd || fail "$config is used by no unit"
done
grep -ho '/etc/cadre/[a-z-]*.textproto' systemd/*.service | sort -u | while read -r path; do
  [ -f "configs/$(basename "$path")" ] || { echo "$path is not shipped" >&2; exit 1; }
done || failed=1
# Both read their file formats without a word.
said=$(systemd-sysusers --dry-run "$PWD/systemd/cadre.sysusers.conf" 2>&1) || fail "sysusers: $said"
# tmpfiles into a root of its own, whose group file knows the group.
root=$TEST_TMPDIR/root
mkdir -p "$root/etc" "$root/srv"
echo "cadre:x:$(id -g):" >"$root/etc/group"
printf 'root:x:%s:%s::/:/bin/sh\n' "$(id -u)" "$(id -g)" >"$root/etc/passwd"
systemd-tmpfiles --root="$root" --create "$PWD/systemd/cadre.tmpfiles.conf" || fail "tmpfiles failed"
[ -d "$root/srv/cadre/checkpoints" ] || fail "tmpfiles made no folder"
exit $failed
