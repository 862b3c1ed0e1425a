#!/bin/sh
# Writes layouts.psv: offset and size of every struct member, and the value of every constant, that
# tests/layouts.rs lists, as a C compiler finds them in the vendor's header.
# A line is struct|member|offset|size, the whole struct with an empty member, or =constant|value|0.
set -eu
cd "$(dirname "$0")"
wheel=nvidia-nvml-dev==13.0.87

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --platform manylinux2014_x86_64 \
    --dest "$tmp" "$wheel"
python3 -m zipfile -e "$tmp"/*.whl "$tmp"
include=$(dirname "$(find "$tmp" -name nvml.h)")

{
    cat <<'END'
#include <stddef.h>
#include <stdio.h>
#include <nvml.h>
#define WHOLE(s) printf("%s||0|%zu\n", #s, sizeof(s));
#define MEMBER(s, m) printf("%s|%s|%zu|%zu\n", #s, #m, offsetof(s, m), sizeof(((s *)0)->m));
#define CONSTANT(c, name) printf("=%s|%llu|0\n", name, (unsigned long long)(c));
int main(void) {
END
    sed -n 's/^    \(nvml[A-Za-z0-9_]*_t\) { \(.*\) }$/\1 \2/p' tests/layouts.rs |
        while read -r name members; do
            echo "WHOLE($name)"
            for member in $members; do
                echo "MEMBER($name, $member)"
            done
        done
    sed -n 's/^    \([A-Za-z0-9_]*\) = .*;$/CONSTANT(\1, "\1")/p' tests/layouts.rs
    echo '}'
} >"$tmp/layouts.c"
gcc -I"$include" -o "$tmp/layouts" "$tmp/layouts.c"
{
    echo "# From nvml.h of $wheel (PyPI), by layouts.sh."
    "$tmp/layouts"
} >layouts.psv
