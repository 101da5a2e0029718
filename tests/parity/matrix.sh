#!/bin/bash
# matrix.sh GOLDEN_ROOT [PARITY]: parity of every fixture below GOLDEN_ROOT on
# all layouts of 1, 2 and 4 ranks, one line each. Exit 1 when one fails.
set -uo pipefail
root=$1
parity=${2:-bazel-bin/tests/parity/parity}
failed=0
for golden in "$root"/*/; do
  for ranks in 1 2 4; do
    for experts in 1 2 4; do
      for shards in 1 2 4; do
        ((ranks % experts == 0 && ranks % shards == 0)) || continue
        if out=$("$parity" --golden "${golden%/}" --ranks $ranks \
          --expert-parallel-size $experts \
          --fsdp-shard-group-size $shards 2>&1); then
          verdict=PASS
        elif [[ $out == *"does not divide"*"expert slots"* ]]; then
          verdict=SKIP # not a layout of this model
        else
          verdict=FAIL
          failed=1
        fi
        worst=$(awk '/1 rank/ {if ($7 + 0 > m) m = $7 + 0} END {print m + 0}' \
          <<<"$out")
        echo "$verdict $(basename "$golden") ranks=$ranks ep=$experts" \
          "fsdp=$shards worst_against_1_rank=$worst"
        [ $verdict != FAIL ] || grep -E 'FAIL|parity:' <<<"$out" | head -4
      done
    done
  done
done
exit $failed
