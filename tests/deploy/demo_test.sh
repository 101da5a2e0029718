#!/bin/bash
set -eu
bin=$PWD
export TMPDIR=$TEST_TMPDIR
exec "$(dirname "$(readlink -f WORKSPACE)")/deploy/demo.sh" --check --bin "$bin"
