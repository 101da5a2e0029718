#!/bin/bash
# The runfile is a link into the source tree: check the tree it points to.
set -eu
tree=$(dirname "$(readlink -f WORKSPACE)")
python3 tests/docs/job_file_doc.py "$tree/proto/cadre/v1/job_spec.proto" \
  "$tree/docs/job_file.md"
python3 "$tree/tools/metrics_doc.py" --check "$tree/base/metrics/names.h" \
  "$tree/docs/metrics.md"
cd "$tree"
python3 "$OLDPWD/tests/docs/doc_paths.py" . README.md CHANGELOG.md \
  CONTRIBUTING.md docs/*.md docs/adr/*.md
