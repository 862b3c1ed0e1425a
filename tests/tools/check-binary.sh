#!/usr/bin/env bash
# check-binary.sh BINARY: the program starts wherever glibc 2.34 is: no newer symbol, no other library.
set -euo pipefail
binary=$1
most=2.34

newest=$(objdump -T "$binary" | grep -oE 'GLIBC_[0-9.]+' | cut -d_ -f2 | sort -Vu | tail -n1)
if [ "$(printf '%s\n' $most "$newest" | sort -V | tail -n1)" != $most ]; then
	echo "error: $binary needs symbols of glibc $newest; build on a distribution with glibc 2.36 or older, as Debian 12:" >&2
	objdump -T "$binary" | grep "GLIBC_$newest" >&2
	exit 1
fi
others=$(objdump -p "$binary" | awk '$1 == "NEEDED" { print $2 }' | grep -vE '^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux.*)$' || true)
if [ -n "$others" ]; then
	echo "error: $binary needs libraries that not every node has:" $others >&2
	exit 1
fi
echo "$binary: symbols of glibc up to $newest"
