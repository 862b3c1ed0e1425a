#!/usr/bin/env bash
# newcomer.sh: what a newcomer types, in a bare Debian 12 with make and this machine's Rust: `make run`, `make test`, `make deb` and the
# installation of the package. Prints the seconds of each.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
root=$work/root
trap 'rm -rf "$work"' EXIT
sysroot=$(rustc --print sysroot)

tests/tools/bare-root.sh "$root" ca-certificates,git,make
# The toolchain as rustup would have it, and the settings of cargo and pip for their registries; nothing else of this machine.
mkdir -p "$root/opt/rust" "$root/root/.cargo/bin" "$root/src"
cp -a "$sysroot/." "$root/opt/rust"
for tool in "$root"/opt/rust/bin/*; do ln -s "/opt/rust/bin/${tool##*/}" "$root/root/.cargo/bin/"; done
for file in /etc/pip.conf "$HOME/.cargo/config.toml" "$HOME/.config/pip/pip.conf" /etc/ssl/certs/ca-certificates.crt; do
	[ ! -e "$file" ] || install -D "$file" "$root${file/#$HOME//root}"
done
git clone -q --no-hardlinks . "$root/src/gpu-node-exporter"

# typed NAME COMMAND: as root in the root, with the network.
typed() {
	local name=$1 started=$SECONDS
	# With the machine's /sys, which every machine has.
	unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" \
		sh -c 'mount --rbind /sys "$0/sys" && mount -t devpts devpts "$0/dev/pts" && exec chroot "$0" "$@"' "$root" \
		env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt bash -c "cd /src/gpu-node-exporter && $2" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
	printf '%-32s %4d s\n' "$name" $((SECONDS - started))
}

started=$SECONDS
# It serves until it is stopped: a scrape is the proof.
typed 'make run' 'make run & run=$!; until exec 3<>/dev/tcp/127.0.0.1/9408; do kill -0 $run || exit 1; sleep 1; done 2>/dev/null
	printf "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&3 && grep -q gpu_exporter_build_info <&3
	kill $run; wait $run || true'
typed 'make test' 'make test'
typed 'make deb, apt-get install' 'make deb && apt-get install -qq -y ./.run/packages/*.deb && gpu-node-exporter --version'
printf '%-32s %4d s on %d cores\n' 'all' $((SECONDS - started)) "$(nproc)"
