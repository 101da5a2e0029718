#!/bin/bash
# Builds the images from the Dockerfile and runs a job in containers of them, one
# of whose workers is killed on the way. Needs no container engine and no
# registry: buildah builds and runs, with chroot alone, on a base image made by
# debootstrap.
#
#   sudo deploy/docker/check_images.sh --bin DIR   with the programs in DIR
#   sudo deploy/docker/check_images.sh             compiles them in the image, too
#
# `worker-cuda` is built where there is a CUDA toolkit (CUDA_HOME, or
# /usr/local/cuda; it stands for the CUDA base image, of which only files are
# taken) and, with --bin, the plugin beside the programs. Its container needs no
# GPU: it says that there is no driver, and then trains on the processor.
#
# Exits 77 where a container cannot be run at all.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=
case "${1:-}" in
  --bin) bin=$(realpath "${2:?--bin needs a folder}") ;;
  "") ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || { echo "skipped: needs root" >&2; exit 77; }
PATH=$PATH:/usr/sbin:/sbin
. tools/setup.sh
. tools/daemons.sh
install_packages <(printf 'buildah\ndebootstrap\n')

work=$(mktemp -d "${TMPDIR:-/tmp}/cadre-images.XXXXXX")
export BUILDAH_ISOLATION=chroot
# Overlays where the kernel lets us, else copies.
buildah=(buildah --storage-driver overlay --root "$work/storage" --runroot "$work/run")
"${buildah[@]}" images >/dev/null 2>&1 || buildah=(buildah --storage-driver vfs --root "$work/copies" --runroot "$work/run")
at_exit() {
  [ "$1" = 0 ] || [ "$1" = 77 ] || tail -n 8 "$work"/*.log >&2 || true
  # Whatever a container left mounted must not be deleted through.
  mount_points=$(awk -v work="$work/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
  for point in $mount_points; do umount -l "$point" || true; done
  rm -rf --one-file-system "$work"
}
stop_at_exit

echo "== base image"
mirror=$(sed -n 's/^\(deb\|URIs:\) *\([^ ]*\).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -m 1 -v security || true)
debootstrap --variant=minbase bookworm "$work/base" "${mirror:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1 ||
  { tail -n 3 "$work/debootstrap.log" >&2; echo "skipped: debootstrap makes no Debian root here" >&2; exit 77; }
# The machine's own way to its packages: mirrors, proxies.
cp -r /etc/apt/. "$work/base/etc/apt/"
{ container=$("${buildah[@]}" from scratch) &&
  "${buildah[@]}" add "$container" "$work/base" / >/dev/null &&
  "${buildah[@]}" run "$container" -- apt-get -qq update >/dev/null; } ||
  { echo "skipped: no container can be run here that reaches Debian's packages" >&2; exit 77; }
"${buildah[@]}" commit --quiet "$container" localhost/base >/dev/null
"${buildah[@]}" rm "$container" >/dev/null
rm -rf --one-file-system "$work/base"

targets=(coordinator worker-cpu) rejoining=worker-cpu
cuda=${CUDA_HOME:-/usr/local/cuda}
plugin=${bin:+$bin/worker/backend/libcadre_cuda.so}
if [ ! -e "$cuda/lib64/libcublasLt.so.13" ] || [ ! -e "$cuda/lib64/libnccl.so.2" ]; then
  echo "worker-cuda: left out, $cuda is no CUDA 13 toolkit with NCCL"
elif [ -n "$bin" ] && [ ! -e "$plugin" ]; then
  echo "worker-cuda: left out, there is no $plugin (build with --config=cuda)"
else
  echo "== stand-in for the CUDA base image, from $cuda"
  targets+=(worker-cuda) rejoining=worker-cuda
  root=$work/cuda
  mkdir -p "$root/usr/local/cuda/lib64" "$root/usr/include" "$root/usr/lib/x86_64-linux-gnu"
  if [ -n "$bin" ]; then
    cp -L "$cuda/lib64/libcublasLt.so.13" "$root/usr/local/cuda/lib64/"
  else
    cp -a "$(realpath "$cuda")/." "$root/usr/local/cuda/"
  fi
  cp -L "$cuda/include/nccl.h" "$root/usr/include/"
  cp -L "$cuda/lib64/libnccl.so.2" "$root/usr/lib/x86_64-linux-gnu/"
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add "$container" "$root" / >/dev/null
  "${buildah[@]}" commit --quiet "$container" localhost/cuda >/dev/null
  "${buildah[@]}" rm "$container" >/dev/null
  rm -rf "$root"
fi

echo "== images"
options=(--quiet --build-arg BASE=localhost/base --build-arg CUDA_BASE=localhost/cuda -f deploy/docker/Dockerfile)
if [ -n "$bin" ]; then
  mkdir -p "$work/context/out"
  for program in coordinator/cadre-coordinator worker/cadre-worker client/cadre; do
    strip -o "$work/context/out/${program#*/}" "$bin/$program"
  done
  options+=(--build-context "build=$work/context")
  if [ $rejoining = worker-cuda ]; then
    mkdir -p "$work/context-cuda/out"
    cp "$work/context/out/cadre-worker" "$work/context-cuda/out/"
    strip -o "$work/context-cuda/out/libcadre_cuda.so" "$plugin"
    options+=(--build-context "build-cuda=$work/context-cuda")
  fi
fi
for target in "${targets[@]}"; do
  "${buildah[@]}" build "${options[@]}" --target "$target" -t "localhost/$target" . >"$work/build.log" 2>&1
  user=$("${buildah[@]}" inspect --type image --format '{{.OCIv1.Config.User}}' "localhost/$target")
  [ "$user" = 10001:10001 ] || { echo "error: image $target runs as '$user'" >&2; exit 1; }
  echo "$target: $("${buildah[@]}" images --format '{{.Size}}' "localhost/$target")"
done

if [ $rejoining = worker-cuda ]; then
  echo "== worker-cuda without a driver"
  container=$("${buildah[@]}" from --name no-driver localhost/worker-cuda)
  inside() { "${buildah[@]}" run "$container" -- "$@"; }
  inside cadre-worker --version
  if inside ldd /usr/bin/libcadre_cuda.so | grep 'not found'; then
    echo "error: the image lacks libraries of the plugin" >&2
    exit 1
  fi
  inside cadre-worker --insecure --device=cuda --check-config
  exit_code=0
  inside cadre-worker --insecure --device=cuda --metrics-listen=off --health-listen=off \
    >"$work/no-driver.log" 2>&1 || exit_code=$?
  grep 'no NVIDIA driver is loaded' "$work/no-driver.log"
  [ $exit_code = 78 ] || { echo "error: exit $exit_code without a driver, expected 78" >&2; exit 1; }
fi

echo "== a job in containers"
run=$work/shared
install -d -o 10001 -g 10001 "$run"
cp -r examples "$run/"
chown -R 10001:10001 "$run/examples"
# start NAME IMAGE PROGRAM ARGUMENT...: in a container of its own; pid in $pid.
start() {
  local name=$1 container
  container=$("${buildah[@]}" from --name "$1" "localhost/$2")
  "${buildah[@]}" run --volume "$run:/srv/cadre" "$container" -- "${@:3}" >"$work/$name.log" 2>&1 &
  pid=$!
  pids+=("$pid")
}
# Every container writes there, as the pods do.
echo 'checkpoints_dir: "/srv/cadre/checkpoints"' >"$run/coordinator.textproto"
start coordinator coordinator cadre-coordinator --config=/srv/cadre/coordinator.textproto --insecure --listen=127.0.0.1:0 --metrics-listen=off \
  --health-listen=off --state-dir=/var/lib/cadre-coordinator --ports-file=/srv/cadre/ports
until_true 30 test -s "$run/ports"
address=127.0.0.1:$(port api "$run/ports")
worker() { # worker NAME IMAGE ID DEVICE
  start "$1" "$2" cadre-worker --insecure --coordinator="$address" --worker-id="$3" --device="$4" \
    --metrics-listen=off --health-listen=off
}
worker worker-0 worker-cpu image.0 cpu
worker worker-1 worker-cpu image.1 cpu
victim=$pid
client=$("${buildah[@]}" from --name client localhost/coordinator)
cadre() { timeout -k 5 300 "${buildah[@]}" run --volume "$run:/srv/cadre" --env "CADRE_ADDRESS=$address" "$client" -- cadre "$@"; }
cadre --version
job=$(cadre submit /srv/cadre/examples/lora.yaml --set output.dir=/srv/cadre/adapter --json |
  python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["name"].split("/")[1])')
stepped() { cadre get "$job" --json | python3 -c 'import json, sys; sys.exit(not int(json.load(sys.stdin)["progress"]["step"]))'; }
until_true 120 stepped
# As if its pod were killed: the process in the container, then another one.
pkill -KILL -f -- '--worker-id=image.1' || { echo "error: no worker to kill" >&2; exit 1; }
wait "$victim" || true
worker worker-1-again $rejoining image.1 auto
cadre watch "$job"
cadre get "$job" --json | grep -q SUCCEEDED
[ -s "$run/adapter/adapter_model.safetensors" ] || { echo "error: no adapter in $run/adapter" >&2; exit 1; }
echo "images ok"
