#!/usr/bin/env bash
# Makes sure that what is needed is here; quiet unless something has to be done.
#   ensure-tools.sh build   a recent enough Rust, a C linker
#   ensure-tools.sh sim     a C++ compiler, for the kernels of the simulated node
#   ensure-tools.sh kernels Python with pip, which fetches the compilers of the kernels
#   ensure-tools.sh test    rustfmt, clippy, promtool and prometheus
set -euo pipefail
cd "$(dirname "$0")/../.."

die() {
	printf 'error: ' >&2
	printf '%s\n' "$@" >&2
	exit 1
}

# apt-get with the rights to install, or what to type instead.
apt_get() {
	local sudo=()
	if [ "$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || die "not root, and there is no sudo. As root, run:" "  apt-get $*"
		sudo=(sudo)
	fi
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"
}

install_packages() {
	command -v apt-get >/dev/null || die "missing, and there is no apt-get to install it: $*"
	echo "installing with apt-get: $*"
	apt_get install -y --no-install-recommends "$@" >/dev/null && return
	# The usual reason is that there are no package lists yet, or old ones.
	echo "once more, with new package lists"
	apt_get update
	apt_get install -y --no-install-recommends "$@" >/dev/null
}

ensure_rust() {
	local wanted found
	wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	found=$(rustc --version 2>/dev/null | cut -d' ' -f2) || true
	if [ -z "$found" ] || ! command -v cargo >/dev/null; then
		die "Rust $wanted or later is needed; none was found. To get it:" \
			"  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
	fi
	if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n1)" != "$wanted" ]; then
		if command -v rustup >/dev/null; then
			die "Rust $wanted or later is needed; this is $found. To get it:" "  rustup update stable"
		fi
		die "Rust $wanted or later is needed; this is $found, without rustup. To get it:" \
			"  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
	fi
}

# The start files come with libc6-dev: a compiler alone cannot link.
ensure_linker() {
	if ! command -v cc >/dev/null || [ ! -e "$(cc -print-file-name=crt1.o)" ]; then
		install_packages gcc libc6-dev
	fi
}

# The simulated node runs the kernels' own sources on the CPU.
ensure_cpp() {
	local probe='#include <ucontext.h>'
	if ! c++ -x c++ -std=c++17 -fsyntax-only - <<<"$probe" 2>/dev/null; then
		install_packages g++ libc6-dev
	fi
}

ensure_pip() {
	python3 -m pip --version >/dev/null 2>&1 || install_packages python3 python3-pip
}

ensure_rust_components() {
	if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
		command -v rustup >/dev/null || die "rustfmt and clippy are needed; install them with the Rust you have"
		echo "installing with rustup: rustfmt clippy"
		rustup -q component add rustfmt clippy
	fi
}

# Unpacked into .tools instead of installed: the Debian package starts a Prometheus service.
ensure_prometheus() {
	local tool
	if [ -x .tools/bin/promtool ] && [ -x .tools/bin/prometheus ]; then
		return
	fi
	mkdir -p .tools/bin
	if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
		for tool in promtool prometheus; do ln -sf "$(command -v "$tool")" .tools/bin/; done
		return
	fi
	command -v apt-get >/dev/null || die "promtool and prometheus are needed: put them on the PATH"
	echo "unpacking the prometheus package into .tools"
	rm -f .tools/prometheus_*.deb
	download_prometheus || { apt_get update && download_prometheus; } ||
		die "apt-get download prometheus failed; or put promtool and prometheus on the PATH"
	dpkg-deb -x .tools/prometheus_*.deb .tools/prometheus
	rm -f .tools/prometheus_*.deb
	for tool in promtool prometheus; do
		ln -sf "../prometheus/usr/bin/$tool" .tools/bin/
		".tools/bin/$tool" --version >/dev/null 2>&1 || die ".tools/bin/$tool does not run on this machine"
	done
}

download_prometheus() {
	(cd .tools && apt-get download -q prometheus) >/dev/null 2>&1
}

for purpose in "$@"; do
	case $purpose in
	build)
		ensure_rust
		ensure_linker
		;;
	sim)
		ensure_cpp
		;;
	kernels)
		ensure_pip
		;;
	test)
		ensure_rust_components
		ensure_cpp
		ensure_prometheus
		;;
	*) die "unknown purpose: $purpose" ;;
	esac
done
