#!/bin/bash
# run.sh NAME: runs tests/cli/NAME.py in the runfiles.
set -eu
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m unittest -v "tests.cli.$1"
