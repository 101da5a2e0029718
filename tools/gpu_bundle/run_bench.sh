#!/bin/bash
# run_bench.sh [FILTER]: every benchmark whose name contains FILTER; JSON lines.
set -uo pipefail
# shellcheck source=tools/gpu_bundle/env.sh
. "$(dirname "$0")/env.sh"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem \
  --format=csv,noheader | awk -F', ' \
  '{ printf "{\"gpu\":\"%s\",\"driver\":\"%s\",\"sm_clock\":\"%s\",\"memory_clock\":\"%s\"}\n", $1, $2, $3, $4 }'
status=0
for bench in "$here"/bench/*; do
  [[ $(basename "$bench") == *"${1:-}"* ]] || continue
  "$bench" || status=1
done
exit $status
