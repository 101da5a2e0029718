#!/bin/bash
# The manifests, rendered: flags, ports, paths and configurations are those of
# the programs. Their schemas are checked by tools/lint.sh.
set -eu
runfiles=$PWD
tree=$(dirname "$(readlink -f WORKSPACE)")
rendered=()
for overlay in base overlays/cpu overlays/gpu; do
  file=$TEST_TMPDIR/$(basename $overlay).yaml
  kubectl kustomize "$tree/deploy/k8s/$overlay" >"$file" 2>"$TEST_TMPDIR/log" || { cat "$TEST_TMPDIR/log"; exit 1; }
  rendered+=("$file")
done
python3 "$runfiles/tests/deploy/manifest_test.py" "$runfiles/coordinator/cadre-coordinator" \
  "$runfiles/worker/cadre-worker" "${rendered[@]}"
