#!/bin/bash
# build.sh OUT: the three programs, optimised and stripped, into a folder; with
# nvcc at hand also the CUDA plugin.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/setup.sh
set_bazel_options
targets=(//coordinator:cadre-coordinator //worker:cadre-worker //client:cadre)
plugin=
case " ${bazel_options[*]} " in *" --config=cuda "*)
  targets+=(//worker/backend:libcadre_cuda.so)
  plugin=bazel-bin/worker/backend/libcadre_cuda.so
  ;;
esac
bazel build "${bazel_options[@]}" -c opt --strip=always -- "${targets[@]}"
mkdir -p "$1"
[ -z "$plugin" ] || install -m 755 "$plugin" "$1"
install -m 755 bazel-bin/coordinator/cadre-coordinator bazel-bin/worker/cadre-worker \
  bazel-bin/client/cadre "$1"
bazel shutdown
