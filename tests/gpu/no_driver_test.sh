#!/bin/bash
# no_driver_test.sh WORKER PLUGIN: a worker with the CUDA plugin on a machine
# without a driver (or without the libraries that come with one) says what is
# missing and what to do, and with --device=auto trains on the processor.
set -uo pipefail
if nvidia-smi >/dev/null 2>&1; then
  echo "skipped: this machine has a driver"
  exit 0
fi
cp "$1" "$2" "$TEST_TMPDIR"
worker=$TEST_TMPDIR/$(basename "$1")
status=0
output=$("$worker" --insecure --device cuda --metrics-listen off \
  --health-listen off 2>&1) || status=$?
echo "$output"
[ $status = 78 ] || { echo "exit $status, expected 78"; exit 1; }
grep -qE 'no NVIDIA driver is loaded.*nvidia-smi must run|cannot open the CUDA plugin: .*LD_LIBRARY_PATH' \
  <<<"$output" || { echo "says not what to do"; exit 1; }
grep -q -- '--device=cpu trains on the processor' <<<"$output" || exit 1

"$worker" --insecure --device auto --coordinator 127.0.0.1:1 \
  --metrics-listen off --health-listen off --ports-file "$TEST_TMPDIR/ports" \
  2>"$TEST_TMPDIR/log" &
pid=$!
for _ in $(seq 300); do
  [ -e "$TEST_TMPDIR/ports" ] && break
  sleep 0.1
done
kill -TERM $pid
wait $pid || { echo "auto: exit $?"; cat "$TEST_TMPDIR/log"; exit 1; }
grep -- '--device=auto takes cpu: ' "$TEST_TMPDIR/log"
