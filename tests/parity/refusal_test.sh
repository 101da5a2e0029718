#!/bin/bash
# What this build cannot run is refused with exit 2 and a message that names
# the flag.
set -uo pipefail
refused() { # refused TEXT FLAGS...
  local text=$1 out status=0
  shift
  out=$(tests/parity/parity "$@" 2>&1) || status=$?
  if [ $status != 2 ] || [[ $out != *"$text"* ]]; then
    echo "parity $*: exit $status, said: $out" >&2
    exit 1
  fi
}
golden=(--golden tests/golden/kimi_linear)
refused "--ranks" "${golden[@]}" --ranks 0
refused "--expert-parallel-size is 3" "${golden[@]}" --ranks 4 \
  --expert-parallel-size 3
refused "--fsdp-shard-group-size is 2" "${golden[@]}" \
  --fsdp-shard-group-size 2
refused "--device cuda" "${golden[@]}" --device cuda
refused "--device tpu" "${golden[@]}" --device tpu
refused "no fixture folder" --golden tests
refused "--golden is required"
