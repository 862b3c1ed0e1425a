#!/usr/bin/env bash
# test-runner.sh PROGRAM ARGUMENTS...: cargo starts test programs through this. The end-to-end tests are a stage of
# `make test` of their own, beside all others.
set -euo pipefail

case ${1##*/} in
e2e-*) exit 0 ;;
esac
exec "$@"
