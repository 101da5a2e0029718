#!/bin/bash
# Prometheus, a coordinator and two CPU workers on loopback, and one training
# job: everything that the dashboards show, on one machine.
#
#   deploy/demo.sh             run the job, say where to look, stop on Ctrl-C
#   deploy/demo.sh --check     run the job, ask Prometheus every query of every
#                              dashboard and rule, stop; exit 0 only if all hold
#   deploy/demo.sh --bin DIR   take the programs from DIR instead of building
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/daemons.sh

check=0 bin=
while [ $# -gt 0 ]; do
  case "$1" in
    --check) check=1 ;;
    --bin) bin=$(realpath "${2:?--bin needs a folder}"); shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "error: unknown option $1; see deploy/demo.sh --help" >&2; exit 2 ;;
  esac
  shift
done

if [ -z "$bin" ]; then
  . tools/setup.sh
  install_packages tools/packages.txt tools/packages_deploy.txt
  set_bazel_options
  bazel build "${bazel_options[@]}" -- //client:cadre //coordinator:cadre-coordinator //worker:cadre-worker
  bin=$PWD/bazel-bin
fi
cadre=$bin/client/cadre

run=$(mktemp -d "${TMPDIR:-/tmp}/cadre-demo.XXXXXX")
at_exit() {
  if [ "$1" -ne 0 ] && [ "$1" -ne 130 ]; then
    echo "failed; the ends of the logs in $run:" >&2
    tail -n 8 "$run"/*.log >&2
  elif [ $check = 1 ]; then
    rm -rf "$run"
  fi
}
stop_at_exit

free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# With TLS, as in earnest: an authority of the demo's own, the coordinator, its
# operator and the workers' host.
tools/dev_ca.sh "$run/tls" server=IP:127.0.0.1 operator=DNS:operator demo=DNS:demo >/dev/null
cat >"$run/access.textproto" <<'TEXT'
certificates { san: "operator" role: ROLE_ADMIN }
certificates { san: "demo" role: ROLE_WORKER }
TEXT
cat >"$run/coordinator.textproto" <<TEXT
tls {
  certificate_file: "$run/tls/server.pem" key_file: "$run/tls/server.key"
  client_ca_file: "$run/tls/ca.pem"
}
access_file: "$run/access.textproto"
TEXT
"$bin/coordinator/cadre-coordinator" --config="$run/coordinator.textproto" --listen=127.0.0.1:0 \
  --metrics-listen=127.0.0.1:0 --health-listen=127.0.0.1:0 --state-dir="$run/state" \
  --ports-file="$run/coordinator.ports" >"$run/coordinator.log" 2>&1 &
pids+=($!)
until_serving "$run/coordinator.ports" $!
CADRE_ADDRESS=127.0.0.1:$(port api "$run/coordinator.ports")
CADRE_CA=$run/tls/ca.pem CADRE_CERT=$run/tls/operator.pem CADRE_KEY=$run/tls/operator.key
export CADRE_ADDRESS CADRE_CA CADRE_CERT CADRE_KEY
for name in ADDRESS CA CERT KEY; do declare -p "CADRE_$name"; done >"$run/env"
# start_worker INDEX METRICS_ADDRESS
start_worker() {
  rm -f "$run/worker-$1.ports"
  OPENBLAS_NUM_THREADS=1 "$bin/worker/cadre-worker" --ca="$run/tls/ca.pem" \
    --cert="$run/tls/demo.pem" --key="$run/tls/demo.key" \
    --coordinator="$CADRE_ADDRESS" --worker-id="demo.$1" --index="$1" \
    --device=cpu --metrics-listen="$2" --health-listen=127.0.0.1:0 \
    --ports-file="$run/worker-$1.ports" >>"$run/worker-$1.log" 2>&1 &
  worker_pids[$1]=$!
  pids+=($!)
  until_serving "$run/worker-$1.ports" "${worker_pids[$1]}"
}
targets=() worker_pids=()
for index in 0 1; do
  start_worker $index 127.0.0.1:0
  targets+=("127.0.0.1:$(port metrics "$run/worker-$index.ports")")
done

# The shipped configuration, scraping faster and at the ports in use.
mkdir -p "$run/prometheus/targets"
cp -r deploy/prometheus/rules "$run/prometheus/"
sed -e "s/127.0.0.1:8472/127.0.0.1:$(port metrics "$run/coordinator.ports")/" \
  -e 's/scrape_interval: .*/scrape_interval: 1s/; s/evaluation_interval: .*/evaluation_interval: 1s/' \
  deploy/prometheus/prometheus.yml >"$run/prometheus/prometheus.yml"
sed -i 's/interval: 15s/interval: 1s/' "$run/prometheus/rules/cadre.rules.yml"
printf -- '- targets: ["%s", "%s"]\n' "${targets[@]}" >"$run/prometheus/targets/workers.yml"
prometheus_address=127.0.0.1:$(free_port)
prometheus --config.file="$run/prometheus/prometheus.yml" --web.listen-address="$prometheus_address" \
  --storage.tsdb.path="$run/prometheus/data" --log.level=warn >"$run/prometheus.log" 2>&1 &
pids+=($!)
until_true 60 curl -sf "http://$prometheus_address/-/ready"

# Before the job, so that every first event is seen as an increase.
all_up() {
  curl -sf "http://$prometheus_address/api/v1/targets" | python3 -c 'import json, sys
targets = json.load(sys.stdin)["data"]["activeTargets"]
sys.exit(len(targets) != 3 or any(t["health"] != "up" for t in targets))'
}
until_true 60 all_up

# Part of the text is held back, so that there is an evaluation to look at.
head -n 120 examples/tiny_moe/constitution.jsonl >"$run/train.jsonl"
tail -n +121 examples/tiny_moe/constitution.jsonl >"$run/eval.jsonl"
"$cadre" submit examples/lora.yaml --set output.dir="$run/adapter" \
  --set "data.train=[\"$run/train.jsonl\"]" --set "data.eval=[\"$run/eval.jsonl\"]" \
  --set training.eval_every=5 --set training.epochs=8 >"$run/submit.log" 2>&1 || { cat "$run/submit.log" >&2; exit 1; }
job=$("$cadre" list --all --limit 1 --json | python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["name"])')
echo "job $job"

# A backup, and a worker that is lost: there is a recovery to look at.
"$cadre" backup >/dev/null
has_checkpoint() { [ -n "$("$cadre" checkpoints "${job#jobs/}" --json)" ]; }
until_true 120 has_checkpoint
kill -KILL "${worker_pids[1]}"
start_worker 1 "${targets[1]}"

if [ $check = 0 ]; then
  cat <<TEXT
prometheus  http://$prometheus_address
coordinator http://127.0.0.1:$(port metrics "$run/coordinator.ports")/metrics
workers     http://${targets[0]}/metrics http://${targets[1]}/metrics
dashboards  deploy/grafana: provision them with this Prometheus as data source
watch       . $run/env && $cadre watch ${job#jobs/}
Ctrl-C stops everything; state and logs are in $run
TEXT
  wait
fi
python3 deploy/check_queries.py --prometheus "http://$prometheus_address" --wait 120
"$cadre" watch "${job#jobs/}" >/dev/null
"$cadre" get "${job#jobs/}"
