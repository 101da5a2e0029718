#!/bin/bash
# run_unittest.sh MODULE: runs a Python test of the runfiles, tests.cli.x say.
set -eu
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m unittest -v "$1"
