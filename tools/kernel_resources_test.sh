#!/bin/bash
# The kernels of linear attention keep nothing in local memory; and the tool
# that says so would say otherwise.
set -euo pipefail
python3 tools/kernel_resources.py --no-spills "$@"
spilling=$TEST_TMPDIR/spilling.txt
cat >"$spilling" <<'END'
ptxas info    : Function properties for _Z6kernelv
    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size
END
for report in "$spilling" /dev/null; do
  if python3 tools/kernel_resources.py --no-spills "$report"; then
    echo "error: $report passed" >&2
    exit 1
  fi
done
