#!/bin/bash
# parity_test.sh ARCHITECTURE [FLAGS...]: the fixture of that name must pass.
set -euo pipefail
architecture=$1
shift
exec tests/parity/parity --golden "tests/golden/$architecture" "$@"
