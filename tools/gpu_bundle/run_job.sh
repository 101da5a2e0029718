#!/bin/bash
# run_job.sh [WORKERS] [SUBMIT OPTIONS]: a coordinator, one GPU worker for each
# of WORKERS GPUs, and the command line run examples/kimi_linear_48b.yaml.
# Prints what the worker logged of each step; logs in ./job.
set -euo pipefail
# shellcheck source=tools/gpu_bundle/env.sh
. "$(dirname "$0")/env.sh"
workers=${1:-1}
shift || true
job=$PWD/job
rm -rf "$job"
mkdir -p "$job"
cp -r "$here/examples" "$job/"
# One text longer than a row, so that a row is one document.
awk -F'"content": "' '{ for (i = 2; i <= NF; ++i) { sub(/"}.*/, "", $i); text = text " " $i } }
  END { gsub(/\\n/, " ", text); for (i = 0; i < 6; ++i) all = all text
        printf "{\"text\": \"%s\"}\n{\"text\": \"%s\"}\n", all, all }' \
  "$here/examples/tiny_moe/constitution.jsonl" >"$job/examples/long.jsonl"
pids=()
# shellcheck disable=SC2317  # called by the trap
stop() {
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  wait || true
}
trap stop EXIT
wait_for() {
  for _ in $(seq 600); do
    [ -s "$1" ] && return
    sleep 0.1
  done
  return 1
}
"$here/cadre-coordinator" --insecure --listen=127.0.0.1:0 \
  --metrics-listen=off --health-listen=off --state-dir="$job/state" \
  --ports-file="$job/ports" >"$job/coordinator.log" 2>&1 &
pids+=($!)
wait_for "$job/ports"
CADRE_ADDRESS=127.0.0.1:$(sed -n 's/^api=//p' "$job/ports")
export CADRE_ADDRESS
for ((index = 0; index < workers; ++index)); do
  "$here/cadre-worker" --insecure --coordinator="$CADRE_ADDRESS" \
    --worker-id="gpu.$index" --index=$index --device=cuda --cpu-threads=8 \
    --metrics-listen=off --health-listen=off \
    --ports-file="$job/worker-$index.ports" >"$job/worker-$index.log" 2>&1 &
  pids+=($!)
done
for ((index = 0; index < workers; ++index)); do
  wait_for "$job/worker-$index.ports" || { cat "$job/worker-$index.log"; exit 1; }
done
"$here/cadre" workers
status=0
"$here/cadre" submit "$job/examples/kimi_linear_48b.yaml" --wait \
  --set output.dir="$job/out" --set resources.workers="$workers" "$@" ||
  status=$?
"$here/cadre" list || true
grep -h "step " "$job"/worker-*.log | tail -40 || true
[ $status = 0 ] || tail -n 20 "$job"/*.log
exit $status
