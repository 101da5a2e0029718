#!/bin/bash
set -eu
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m tools.loadtest.run "$@"
