#!/bin/bash
# run_mesh.sh [PART...]: jobs over two GPUs through a coordinator, two workers
# and the command line. Parts: layouts (losses of every layout against one
# GPU), balance (experts that move in mid-job, capacities), failure (a worker is
# killed in mid-job and comes back), memory (a job that does not fit, then one
# that does), large (examples/kimi_linear_48b.yaml
# over two GPUs). Prints one JSON line per result; logs in ./mesh.
set -uo pipefail
# shellcheck source=tools/gpu_bundle/env.sh
. "$(dirname "$0")/env.sh"
parts=${*:-layouts balance failure memory large}
mesh=$PWD/mesh
rm -rf "$mesh"
mkdir -p "$mesh"
cp -r "$here/examples" "$mesh/"
awk -F'"content": "' '{ for (i = 2; i <= NF; ++i) { sub(/"}.*/, "", $i); text = text " " $i } }
  END { gsub(/\\n/, " ", text); for (i = 0; i < 6; ++i) all = all text
        for (i = 0; i < 4; ++i) printf "{\"text\": \"%s\"}\n", all }' \
  "$here/examples/tiny_moe/constitution.jsonl" >"$mesh/examples/long.jsonl"
# shellcheck disable=SC2317  # called by the trap
stop() {
  for file in "$mesh"/*.pid; do kill -TERM "$(cat "$file")" 2>/dev/null || true; done
  wait || true
}
trap stop EXIT
wait_for() {
  for _ in $(seq 600); do
    [ -s "$1" ] && return
    sleep 0.1
  done
  echo "$0: $1 does not appear" >&2
  exit 1
}
start_worker() { # start_worker INDEX
  rm -f "$mesh/worker-$1.ports"
  "$here/cadre-worker" --insecure --coordinator="$CADRE_ADDRESS" \
    --worker-id="gpu.$1" --index="$1" --device=cuda --cpu-threads=8 \
    --metrics-listen=off --health-listen=off \
    --ports-file="$mesh/worker-$1.ports" >>"$mesh/worker-$1.log" 2>&1 &
  echo $! >"$mesh/worker-$1.pid"
  wait_for "$mesh/worker-$1.ports"
}
"$here/cadre-coordinator" --insecure --listen=127.0.0.1:0 \
  --metrics-listen=off --health-listen=off --state-dir="$mesh/state" \
  --ports-file="$mesh/ports" >"$mesh/coordinator.log" 2>&1 &
echo $! >"$mesh/coordinator.pid"
wait_for "$mesh/ports"
CADRE_ADDRESS=127.0.0.1:$(sed -n 's/^api=//p' "$mesh/ports")
export CADRE_ADDRESS NO_COLOR=1
start_worker 0
start_worker 1
"$here/cadre" workers

# submit NAME FILE OPTIONS...: runs to its end; its exit code, and the job's
# name in $job.
submit() {
  local name=$1 file=$2 status=0
  shift 2
  "$here/cadre" submit "$mesh/examples/$file" --wait \
    --set output.dir="$mesh/out-$name" --set resources.backend=cuda "$@" \
    >"$mesh/$name.log" 2>&1 || status=$?
  job=$(sed -n 's/.*submitted \(jobs\/\)\{0,1\}\([^ ]*\).*/\2/p' "$mesh/$name.log" | head -1)
  "$here/cadre" events "$job" >"$mesh/$name.events" 2>&1
  "$here/cadre" series "$job" loss >"$mesh/$name.loss" 2>&1
  return $status
}
# distance A B: the largest relative distance of two runs' losses.
distance() {
  paste <(grep '^loss' "$mesh/$1.loss") <(grep '^loss' "$mesh/$2.loss") |
    awk '{ d = ($6 - $3) / $3; if (d < 0) d = -d; if (d > most) most = d; ++n }
         END { printf "%.2e over %d steps", most, n }'
}
small=(--set training.epochs=2)
sed '/^  lora_/d; s/method: lora/method: full/' "$mesh/examples/lora.yaml" \
  >"$mesh/examples/full.yaml"

if [[ " $parts " == *" layouts "* ]]; then
  for dtype in fp32 bf16; do
    for method in lora full; do
      options=("${small[@]}" --set "model.dtype=$dtype")
      [ $method = full ] && options+=(--set training.learning_rate=1e-3)
      for layout in 1-1-1 2-1-1 2-2-1 2-1-2 2-2-2; do
        IFS=- read -r workers shards experts <<<"$layout"
        name=$dtype-$method-$layout status=0
        begin=$(date +%s%3N)
        submit "$name" $method.yaml "${options[@]}" \
          --set resources.workers="$workers" \
          --set parallelism.fsdp_shard_group_size="$shards" \
          --set parallelism.expert_parallel_size="$experts" || status=$?
        printf '{"layout":"%s","exit":%d,"ms":%d,"loss distance":"%s"}\n' \
          "$name" $status $(($(date +%s%3N) - begin)) \
          "$(distance "$dtype-$method-1-1-1" "$name")"
        [ $status = 0 ] || tail -n 5 "$mesh/$name.log"
      done
    done
  done
fi

if [[ " $parts " == *" balance "* ]]; then
  # Long enough for orders to come, which travel with a Sync a second.
  spread=(--set training.epochs=40 --set resources.workers=2
    --set parallelism.expert_parallel_size=2)
  submit still lora.yaml "${spread[@]}" --set moe.rebalance=off
  status=0
  submit moving lora.yaml "${spread[@]}" --set moe.rebalance_every=10 \
    --set moe.rebalance_min_gain=0 --set moe.spare_slots_per_rank=1 || status=$?
  printf '{"balance":"moving","exit":%d,"moves":%d,"loss distance":"%s"}\n' \
    $status "$(grep -c EXPERTS_REBALANCED "$mesh/moving.events")" \
    "$(distance still moving)"
  [ $status = 0 ] || tail -n 5 "$mesh/moving.log"
  for policy in drop_by_weight drop_by_position remap; do
    status=0
    submit $policy lora.yaml "${spread[@]}" --set moe.overflow_policy=$policy \
      --set moe.capacity_factor=1.0 || status=$?
    printf '{"balance":"%s","exit":%d,"loss distance":"%s"}\n' \
      $policy $status "$(distance still $policy)"
    [ $status = 0 ] || tail -n 5 "$mesh/$policy.log"
  done
fi

if [[ " $parts " == *" failure "* ]]; then
  : >"$mesh/worker-1.log"
  (
    for _ in $(seq 900); do
      grep -q "step 10:" "$mesh/worker-1.log" && break
      sleep 0.1
    done
    sleep 1
    kill -KILL "$(cat "$mesh/worker-1.pid")"
    # As a service manager does.
    sleep 2
    start_worker 1
    wait
  ) &
  status=0
  submit failure lora.yaml --set training.epochs=60 \
    --set resources.workers=2 --set parallelism.fsdp_shard_group_size=2 \
    --set parallelism.expert_parallel_size=2 || status=$?
  printf '{"failure":"killed worker","exit":%d}\n' $status
  cat "$mesh/failure.events"
  grep -h -iE "abort|lost|nccl" "$mesh"/worker-0.log | tail -n 8
fi

if [[ " $parts " == *" memory "* ]]; then
  status=0
  submit memory kimi_linear_48b.yaml --set resources.workers=1 \
    --set data.max_seq_len=65536 --set training.max_steps=1 \
    --set parallelism.activation_checkpointing=false || status=$?
  printf '{"memory":"too long","exit":%d}\n' $status
  tail -n 6 "$mesh/memory.log"
  status=0
  submit after lora.yaml "${small[@]}" --set resources.workers=2 \
    --set parallelism.expert_parallel_size=2 || status=$?
  printf '{"memory":"the next job","exit":%d}\n' $status
fi

if [[ " $parts " == *" large "* ]]; then
  for layout in 1-2 2-2; do
    IFS=- read -r shards experts <<<"$layout"
    : >"$mesh/worker-0.log"
    status=0
    submit "large-$layout" kimi_linear_48b.yaml --set resources.workers=2 \
      --set training.global_batch_size=2 \
      --set parallelism.fsdp_shard_group_size="$shards" \
      --set parallelism.expert_parallel_size="$experts" || status=$?
    printf '{"large":"FSDP %s, EP %s","exit":%d}\n' "$shards" "$experts" $status
    grep -h "step " "$mesh/worker-0.log" | sed 's/.*] //' | tail -n 4
    [ $status = 0 ] || tail -n 5 "$mesh/large-$layout.log"
  done
fi
