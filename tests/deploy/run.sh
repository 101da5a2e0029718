#!/bin/bash
# run.sh NAME: runs tests/deploy/NAME.py in the runfiles.
set -eu
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m unittest -v "tests.deploy.$1"
