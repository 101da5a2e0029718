# shellcheck shell=bash
# Sourced by the scripts of the bundle: where its libraries and the machine's
# CUDA libraries are.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
path=$here/lib
for folder in ${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/cuda/lib64; do
  [ -d "$folder" ] && path=$path:$folder
done
if command -v python3 >/dev/null 2>&1; then
  # Python's wheels keep NCCL and cuBLASLt under site-packages/nvidia/*/lib.
  for folder in $(python3 -c 'import glob, sysconfig
print(*glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/*/lib"))' 2>/dev/null); do
    path=$path:$folder
  done
fi
export LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# One thread a rank in OpenBLAS, as in all of Cadre.
export OPENBLAS_NUM_THREADS=1
