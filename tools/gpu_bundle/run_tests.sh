#!/bin/bash
# run_tests.sh [FILTER]: the GPU tests and the parity of every fixture, whose
# names contain FILTER. One JSON line each; logs in ./logs. Exit 1 when one
# failed.
set -uo pipefail
# shellcheck source=tools/gpu_bundle/env.sh
. "$(dirname "$0")/env.sh"
filter=${1:-}
mkdir -p logs
failed=0
check() { # check NAME COMMAND...
  local name=$1 begin status=0
  shift
  [[ $name == *"$filter"* ]] || return 0
  begin=$(date +%s%3N)
  timeout 300 "$@" >"logs/${name//[ \/]/_}.log" 2>&1 || status=$?
  [ $status = 0 ] || failed=1
  printf '{"test":"%s","status":"%s","exit":%d,"ms":%d,"skipped":%d}\n' \
    "$name" "$([ $status = 0 ] && echo passed || echo failed)" $status \
    $(($(date +%s%3N) - begin)) \
    "$(grep -c '^\[  SKIPPED \] [^0-9]' "logs/${name//[ \/]/_}.log")"
}
for test in "$here"/tests/*; do
  check "$(basename "$test")" "$test" --gtest_brief=1
done
mkdir -p golden
for archive in "$here"/golden/*.tar.xz; do
  architecture=$(basename "$archive" .tar.xz)
  [ "$architecture" = tokenizers ] && continue
  [ -d "golden/$architecture" ] || tar -xJf "$archive" -C golden
  for dtype in f32 bf16; do
    check "parity $architecture $dtype" "$here/parity" --device cuda \
      --dtype $dtype --golden "golden/$architecture"
  done
done
exit $failed
