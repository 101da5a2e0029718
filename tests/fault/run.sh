#!/bin/bash
# run.sh MODULE [ARG...]: runs tests/fault/MODULE.py in the runfiles.
set -eu
export PYTHONDONTWRITEBYTECODE=1
module=$1
shift
exec python3 -m "tests.fault.$module" "$@"
