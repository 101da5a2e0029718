#!/bin/bash
# Installs what is missing on a bare Debian 12 machine, lints, builds everything
# (the CUDA sources too where nvcc is present) and runs every test. The last
# line counts test cases: "N passed, N failed, N skipped".
#
#   ./test.sh                 everything
#   ./test.sh --no-lint       without format and lint checks
#   ./test.sh --asan|--tsan   under sanitizers (no lint)
#   ./test.sh //model/...     these targets only (no lint)
set -uo pipefail
cd "$(dirname "$0")" || exit 1
. tools/setup.sh

lint=1
targets=()
extra=()
for argument in "$@"; do
  case "$argument" in
    --no-lint) lint=0 ;;
    --asan | --tsan) extra+=("--config=${argument#--}"); lint=0 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "error: unknown option $argument; see ./test.sh --help" >&2; exit 2 ;;
    *) targets+=("$argument"); lint=0 ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=(//...)

install_packages tools/packages.txt tools/packages_deploy.txt || exit 1
# Not over a newer one of the machine's.
command -v kubectl >/dev/null || install_packages <(echo kubernetes-client) || exit 1
lint_passed=0 lint_failed=0
if [ $lint = 1 ]; then
  install_packages tools/packages_lint.txt || exit 1
  if tools/lint.sh; then lint_passed=1; else lint_failed=1; fi
fi

set_bazel_options
events=$(mktemp)
trap 'rm -f "$events"' EXIT
status=0
# Tests really run, even where the cache knows their result.
bazel test "${bazel_options[@]}" "${extra[@]}" --nocache_test_results \
  --build_event_json_file="$events" -- "${targets[@]}" || status=$?
[ "${CI:-}" = true ] && bazel shutdown
[ $lint_failed = 0 ] || status=1
python3 tools/count_tests.py "$events" "$lint_passed" "$lint_failed" || status=1
exit $status
