#!/bin/bash
# merge_test.sh ARCHITECTURE: `cadre export --merge` on every adapter of the
# fixture gives checkpoints whose logits are those of base and adapter.
set -euo pipefail
golden=tests/golden/$1
scratch=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
merge() { # merge ADAPTER NAME FLAGS...
  local adapter=$1 out=$scratch/$2
  shift 2
  client/cadre export --merge --base "$golden/model" --adapter "$adapter" \
    --output "$out" "$@"
}
check() { # check ADAPTER NAME
  tests/parity/merged_logits --golden "$golden" --adapter "$1" \
    --merged "$scratch/$2"
}
for run in attn attn_experts router; do
  adapter=$golden/lora_${run}_final
  merge "$adapter" "$run"
  check "$adapter" "$run"
done
# The same adapter with a pair of matrices per expert.
adapter=$golden/lora_attn_experts_final
tests/parity/merged_logits --golden "$golden" --adapter "$adapter" \
  --per-expert "$scratch/per_expert"
merge "$scratch/per_expert" split --dtype f32
check "$scratch/per_expert" split
# A result is never overwritten, and a failure leaves nothing behind.
status=0
merge "$adapter" split 2>"$scratch/said" || status=$?
grep -q "split exists" "$scratch/said"
[ $status = 6 ]
status=0
merge "$golden/model" none 2>"$scratch/said" || status=$?
[ $status != 0 ] && [ ! -e "$scratch/none" ]
merge "$adapter" rounded --dtype bf16
