#!/usr/bin/env bash
# test-runner.sh PROGRAM ARGUMENTS...: cargo starts test programs through this. End-to-end tests mostly wait, so three of
# them run for two cores; the others compute, and some compare times.
set -euo pipefail

case ${1##*/} in
e2e-*) export RUST_TEST_THREADS=$(($(nproc) + $(nproc) / 2)) ;;
esac
exec "$@"
