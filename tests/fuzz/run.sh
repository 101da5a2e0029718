#!/bin/bash
# run.sh [--minutes N] [--seed S] [--parallel P] [TARGET...]: searches each
# parser with libFuzzer under the address and undefined-behaviour sanitizers, N
# minutes each (10), P at a time (2). Needs what packages.txt beside it names.
# What is found lies in fuzz-findings/TARGET/; the search starts from the corpus
# of the tree and, where a former run left one, from fuzz-corpus/TARGET/.
set -euo pipefail
cd "$(dirname "$0")/../.."
minutes=10 seed=1 parallel=2 targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --minutes) minutes=$2; shift ;;
    --seed) seed=$2; shift ;;
    --parallel) parallel=$2; shift ;;
    -*) sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
runtime=libclang_rt.fuzzer-$(uname -m).a
if ! command -v clang-19 >/dev/null ||
  [ "$(clang-19 -print-file-name="$runtime")" = "$runtime" ]; then
  echo "run.sh: no clang-19 or no $runtime; apt-get install" \
    "$(grep -v '^#' tests/fuzz/packages.txt | xargs)" >&2
  exit 2
fi
# An output base of its own: a change of compiler would throw away the other's.
bazel=(bazel "--output_base=$(bazel info output_base)-fuzz")
"${bazel[@]}" build --config=fuzz --symlink_prefix=/ \
  //tests/fuzz:libfuzzer
program=$("${bazel[@]}" info --config=fuzz bazel-bin)/tests/fuzz/libfuzzer
"${bazel[@]}" shutdown
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
export UBSAN_OPTIONS=print_stacktrace=1
# search TARGET
search() {
  local log=fuzz-findings/$1/log status=0
  mkdir -p "fuzz-corpus/$1" "fuzz-findings/$1"
  CADRE_FUZZ_TARGET=$1 nice "$program" "-max_total_time=$((minutes * 60))" \
    "-seed=$seed" -timeout=20 -rss_limit_mb=2048 -max_len=16384 \
    "-artifact_prefix=fuzz-findings/$1/" \
    "fuzz-corpus/$1" "tests/fuzz/corpus/$1" >"$log" 2>&1 || status=1
  echo "$1: $(tail -1 "$log")"
  [ $status = 0 ] ||
    grep -E 'ERROR|runtime error|does not hold|Test unit' "$log" >&2 || true
  return $status
}
status=0 running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$parallel" ]; then
    wait -n || status=1
    running=$((running - 1))
  fi
  search "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || status=1
  running=$((running - 1))
done
exit "$status"
