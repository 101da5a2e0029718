#!/bin/bash
# Formatting and lint of tracked files by clang-format, buildifier, buf and
# the shell checker. --fix rewrites what can be; --tidy also runs clang-tidy
# (slow). Exits 1 on any finding.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
fix=0 tidy=0
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    *) echo "usage: tools/lint.sh [--fix] [--tidy]" >&2; exit 2 ;;
  esac
done

# buf and buildifier come as binaries inside npm packages, and so do the schemas
# of Kubernetes' objects.
npm_dir=${CADRE_NPM_DIR:-$HOME/.cache/cadre/npm}
bin=$npm_dir/node_modules/.bin
if [ ! -x "$bin/buf" ] || [ ! -x "$bin/buildifier" ] || [ ! -d "$npm_dir/node_modules/kubernetes-models" ] ||
  [ ! -x "$bin/dockerfile-utils" ]; then
  if ! command -v npm >/dev/null; then
    . tools/setup.sh
    install_packages <(echo npm) || exit 1
  fi
  mkdir -p "$npm_dir"
  npm install --prefix "$npm_dir" --no-audit --no-fund --ignore-scripts \
    @bufbuild/buf@1.75.0 @bazel/buildifier@8.2.1 dockerfile-utils@0.16.3 \
    kubernetes-models@5.1.0 >/dev/null || exit 1
fi

status=0
check() { # check NAME COMMAND...
  local name=$1
  shift
  if "$@"; then echo "lint: $name ok"; else
    echo "lint: $name failed" >&2
    status=1
  fi
}

mapfile -t sources < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -t builds < <(git ls-files '*BUILD.bazel' '*.bzl' WORKSPACE ':!third_party/bazel')
mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
# Rules of later Bazel versions that 4.2 does not have.
warnings=-native-sh-test,-native-sh-binary,-native-cc-common,-native-cc-info,-native-cc-library,-native-py-test,-native-py-binary
if [ $fix = 1 ]; then
  clang-format-19 -i "${sources[@]}"
  "$bin/buildifier" --lint=fix --warnings=$warnings "${builds[@]}"
  "$bin/buf" format -w --path proto/cadre
fi
check clang-format clang-format-19 --dry-run -Werror "${sources[@]}"
check buildifier "$bin/buildifier" --mode=check --lint=warn --warnings=$warnings "${builds[@]}"
check buf "$bin/buf" lint
check buf-format "$bin/buf" format --exit-code -d --path proto/cadre
check shellcheck shellcheck -x "${scripts[@]}"
check dockerfile "$bin/dockerfile-utils" lint deploy/docker/Dockerfile
check kubernetes deploy/k8s/validate.sh "$npm_dir/node_modules"
if [ $tidy = 1 ]; then
  python3 tools/compile_commands.py || exit 1
  mapfile -t tidied < <(git ls-files '*.cc')
  check clang-tidy clang-tidy-19 --quiet -p . "${tidied[@]}"
fi
exit $status
