#!/bin/bash
# For scripts that start daemons; source it. A script adds the process ids of
# what it starts to `pids`.
#
#   stop_at_exit             from now on the end of the script, whatever it is,
#                            stops them; then `at_exit STATUS` is called, which
#                            the script defines
#   until_true SECONDS COMMAND...   waits until the command succeeds
#   until_serving FILE PID   waits until that daemon has written its ports file
#   port NAME FILE           of "NAME=PORT" in a ports file
pids=()

stop_at_exit() {
  trap stop_daemons EXIT
  trap 'exit 130' INT TERM
}

stop_daemons() {
  local status=$?
  trap - EXIT INT TERM
  [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  at_exit "$status" || true
  exit "$status"
}

until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "waited in vain for: $*" >&2; return 1; }
    sleep 0.2
  done
}

until_serving() {
  local end=$((SECONDS + 60))
  until [ -s "$1" ]; do
    kill -0 "$2" 2>/dev/null || { echo "$(basename "$1" .ports) did not start" >&2; return 1; }
    [ $SECONDS -lt $end ] || { echo "$(basename "$1" .ports) does not serve" >&2; return 1; }
    sleep 0.1
  done
}

port() { sed -n "s/^$1=//p" "$2"; }
