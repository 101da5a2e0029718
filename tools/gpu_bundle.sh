#!/bin/bash
# Packs what is needed to test, measure and train on a machine with a GPU into
# one archive: tools/gpu_bundle.sh OUT.tar.xz [--no-build]
#
# The target machine needs an NVIDIA driver, glibc 2.36 or later, and the CUDA 13
# libraries cuBLASLt and NCCL in /usr/local/cuda or in Python's nvidia wheels;
# everything else is inside. There:
#   tar -xJf OUT.tar.xz && gpu_bundle/run_tests.sh && gpu_bundle/run_bench.sh
# Both print one JSON line per result.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1")
programs=(
  //coordinator:cadre-coordinator //worker:cadre-worker //client:cadre
  //tests/parity:parity
)
plugin=//worker/backend:libcadre_cuda.so
config=(--config=cuda)
mapfile -t tests < <(bazel query --noshow_progress \
  'attr(tags, "\bgpu\b", tests(//kernels/... + //tests/gpu/... + //worker/...))')
mapfile -t benches < <(bazel query --noshow_progress \
  'filter("_bench$", kind(cc_binary, //kernels/... + //tests/gpu/...))')
if [ "${2:-}" != --no-build ]; then
  bazel build "${config[@]}" --noshow_progress "${programs[@]}" "$plugin" \
    "${tests[@]}" "${benches[@]}"
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/gpu_bundle
mkdir -p "$root"/{lib,tests,bench,golden,examples}

file_of() { # file_of //folder:name -> path of the built file
  local label=${1#//}
  echo "bazel-bin/${label%%:*}/${label##*:}"
}
# Copies a program or library, stripped, and the shared libraries it needs but
# for those that the target has.
add() { # add FILE FOLDER
  install -m 0755 "$(realpath "$1")" "$root/$2/$(basename "$1")"
  strip "$root/$2/$(basename "$1")"
  { ldd "$1" || true; } | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    { grep -vE '/(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libcuda|libcudart|libcublas|libcublasLt|libnccl)\.so' || true; } |
    while read -r library; do
      # Under the name that is asked for, not that of the file behind the link.
      install -m 0755 "$(realpath "$library")" "$root/lib/$(basename "$library")"
    done
}
for label in "${programs[@]}"; do add "$(file_of "$label")" .; done
add "$(file_of "$plugin")" lib
for label in "${tests[@]}"; do add "$(file_of "$label")" tests; done
for label in "${benches[@]}"; do add "$(file_of "$label")" bench; done
cp tests/golden/*.tar.xz "$root/golden/"
cp -r examples/configs examples/tiny_moe examples/*.yaml "$root/examples/"
cp tools/gpu_bundle/* "$root/"
chmod +x "$root"/*.sh
mkdir -p "$(dirname "$out")"
# The programs share most of their code: a dictionary that holds all of them
# finds it again (and wants that much memory to unpack).
tar -C "$stage" --owner=0 --group=0 --mtime=@0 --sort=name -cf - gpu_bundle |
  xz -T1 --lzma2=preset=4,dict=448MiB >"$out"
bytes=$(stat -c %s "$out")
echo "$out: $bytes bytes; ${#tests[@]} tests, ${#benches[@]} benchmarks"
if [ "$bytes" -ge 60000000 ]; then
  echo "$0: the bundle is larger than 60 MB" >&2
  exit 1
fi
