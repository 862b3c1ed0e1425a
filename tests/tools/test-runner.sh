#!/usr/bin/env bash
# test-runner.sh PROGRAM ARGUMENTS...: cargo starts test programs through this. End-to-end tests mostly wait, so two of them
# run for each core; the others compute, and some compare times.
set -euo pipefail

case ${1##*/} in
e2e-*) export RUST_TEST_THREADS=$((2 * $(nproc))) ;;
esac
exec "$@"
