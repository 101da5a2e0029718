#!/bin/bash
# parity_twin_test.sh ARCHITECTURE: the fixture of that name must pass in bf16,
# and in f32, as a GPU holds them.
set -euo pipefail
for dtype in f32 bf16; do
  tests/parity/parity_twin --golden "tests/golden/$1" --device cuda \
    --dtype $dtype
done
