#!/bin/bash
# From a bare Debian 12 machine to a trained adapter: installs what is missing,
# builds, starts a coordinator and two CPU workers on loopback, submits the LoRA
# example, shows its progress and where the results are, stops what it started.
# Exits 0 only if the job succeeded and its loss fell.
#
#   ./quickstart.sh           run and stop everything
#   ./quickstart.sh --keep    leave the daemons up and say how to use them
set -euo pipefail
cd "$(dirname "$0")"
. tools/setup.sh
. tools/daemons.sh

keep=0
for argument in "$@"; do
  case "$argument" in
    --keep) keep=1 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "error: unknown option $argument; see ./quickstart.sh --help" >&2; exit 2 ;;
  esac
done

echo "== 1/4 packages"
install_packages tools/packages.txt
echo "== 2/4 build"
set_bazel_options
bazel build "${bazel_options[@]}" -- //client:cadre //coordinator:cadre-coordinator //worker:cadre-worker
bin=$PWD/bazel-bin
cadre=$bin/client/cadre

echo "== 3/4 start a coordinator and two workers"
run=$(mktemp -d "${TMPDIR:-/tmp}/cadre-quickstart.XXXXXX")
at_exit() {
  [ "$1" -ne 0 ] || return 0
  echo "failed; logs are in $run" >&2
  tail -n 5 "$run"/*.log >&2
}
stop_at_exit

"$bin/coordinator/cadre-coordinator" --insecure --listen=127.0.0.1:0 \
  --metrics-listen=127.0.0.1:0 --health-listen=off --state-dir="$run/state" \
  --ports-file="$run/coordinator.ports" >"$run/coordinator.log" 2>&1 &
pids+=($!)
until_serving "$run/coordinator.ports" $!
CADRE_ADDRESS=127.0.0.1:$(port api "$run/coordinator.ports")
export CADRE_ADDRESS
worker_metrics=()
for index in 0 1; do
  OPENBLAS_NUM_THREADS=1 "$bin/worker/cadre-worker" --insecure \
    --coordinator="$CADRE_ADDRESS" --worker-id="quickstart.$index" --index=$index \
    --device=cpu --metrics-listen=127.0.0.1:0 --health-listen=off \
    --ports-file="$run/worker-$index.ports" >"$run/worker-$index.log" 2>&1 &
  pids+=($!)
  until_serving "$run/worker-$index.ports" $!
  worker_metrics+=("$(port metrics "$run/worker-$index.ports")")
done
"$cadre" workers

echo "== 4/4 LoRA job examples/lora.yaml"
"$cadre" submit examples/lora.yaml --set output.dir="$run/adapter" --wait || {
  echo "the job did not succeed" >&2
  exit 1
}
job=$("$cadre" list --all --limit 1 --json | python3 -c 'import json, sys; print(json.dumps(json.loads(sys.stdin.readline())))')
read -r first last name < <(python3 -c 'import json, sys
job = json.loads(sys.argv[1]); p = job["progress"]
print(p["first_loss"], p["loss"], job["name"].split("/")[1])' "$job")
echo
echo "loss     $first -> $last"
echo "adapter  $run/adapter"
echo "metrics  http://127.0.0.1:$(port metrics "$run/coordinator.ports")/metrics (coordinator), $(printf 'http://127.0.0.1:%s/metrics ' "${worker_metrics[@]}")(workers)"
python3 -c 'import sys; sys.exit(not float(sys.argv[2]) < float(sys.argv[1]))' "$first" "$last" || {
  echo "the loss did not fall" >&2
  exit 1
}
if [ $keep = 1 ]; then
  trap - EXIT
  disown -a
  cat <<EOF

The daemons are still running. Try:
  export CADRE_ADDRESS=$CADRE_ADDRESS
  $cadre list --all
  $cadre get $name
  $cadre submit examples/lora.yaml --wait
  $cadre inspect examples/tiny_moe/base
Stop them with: kill ${pids[*]}
Logs and state: $run
EOF
fi
