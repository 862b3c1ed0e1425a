#!/usr/bin/env bash
# test-runner.sh PROGRAM ARGUMENTS...: cargo starts test programs through this. End-to-end tests mostly
# wait, but the canary of a node has a budget of real time: one of them runs on each core.
set -euo pipefail

case ${1##*/} in
e2e-*) export RUST_TEST_THREADS=$(nproc) ;;
esac
exec "$@"
