#!/bin/bash
# run_module.sh MODULE [ARG...]: runs a Python program of the runfiles,
# tests.cli.submit_test say.
set -eu
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m "$@"
