#!/bin/bash
# How cadre-worker starts: what it refuses, with which exit code and words.
set -uo pipefail
worker=$1
failed=0

# expect NAME EXIT_CODE TEXT COMMAND...: the command ends with that code and
# says that text.
expect() {
  local name=$1 code=$2 text=$3 output status
  shift 3
  output=$("$@" 2>&1)
  status=$?
  if [ $status != "$code" ] || ! grep -qF -- "$text" <<<"$output"; then
    echo "$name: exit $status, expected $code and '$text' in: $output"
    failed=1
  fi
}

config=$TEST_TMPDIR/worker.textproto
echo 'worker_id: "a.0" cpu_threads: 2' >"$config"
expect "good configuration" 0 "good" "$worker" --config "$config" --check-config
expect "help" 0 "--coordinator" "$worker" --help
expect "version" 0 "cadre-worker" "$worker" --version
expect "unknown flag" 2 "--nonsense" "$worker" --nonsense
expect "bad device" 78 "'tpu'" "$worker" --device tpu
expect "bad address" 78 "--coordinator" "$worker" --coordinator nowhere
expect "bad id" 78 "--worker-id" "$worker" --worker-id 'a b'
expect "no cuda" 78 "--device=cuda" "$worker" --insecure --device cuda \
  --metrics-listen off --health-listen off
expect "plaintext not asked for" 78 "--insecure" "$worker" --device cpu \
  --metrics-listen off --health-listen off
echo 'no_such_field: 1' >"$config"
expect "unknown field" 78 "no_such_field" "$worker" --config "$config"
echo 'timeouts { sync_deadline: "1ms" }' >"$config"
expect "timeouts out of order" 78 "sync_deadline" "$worker" --config "$config"

# Without a GPU it takes the processor and says why; without a coordinator it waits, writes its ports, and leaves on SIGTERM.
ports=$TEST_TMPDIR/ports
"$worker" --insecure --device auto --coordinator 127.0.0.1:1 --health-listen off --metrics-listen \
  127.0.0.1:0 --ports-file "$ports" 2>"$TEST_TMPDIR/log" &
pid=$!
for _ in $(seq 300); do
  [ -s "$ports" ] && break
  sleep 0.1
done
grep -q '^metrics=[1-9]' "$ports" || { echo "no port in $ports"; failed=1; }
kill -TERM $pid
wait $pid
status=$?
grep -q -- '--device=auto takes cpu: ' "$TEST_TMPDIR/log" ||
  nvidia-smi >/dev/null 2>&1 ||
  { echo "no reason for the processor:"; cat "$TEST_TMPDIR/log"; failed=1; }
[ $status = 0 ] || { echo "SIGTERM: exit $status"; cat "$TEST_TMPDIR/log"; failed=1; }
exit $failed
