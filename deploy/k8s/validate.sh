#!/bin/bash
# validate.sh MODULES: renders every kustomization and checks its objects against
# the schemas of the npm package kubernetes-models in the folder MODULES.
set -euo pipefail
modules=$(realpath "$1")
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for kustomization in base overlays/*/; do
  kubectl kustomize "$kustomization" 2>"$folder/log" |
    python3 -c 'import json, sys, yaml; json.dump([o for o in yaml.safe_load_all(sys.stdin) if o], sys.stdout)' \
      >"$folder/$(basename "$kustomization").json" || { cat "$folder/log" >&2; exit 1; }
done
node validate.mjs "$modules" "$folder"/*.json
