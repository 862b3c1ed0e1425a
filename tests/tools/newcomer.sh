#!/usr/bin/env bash
# newcomer.sh: what a newcomer types, in a bare Debian 12 with make and this machine's Rust: the commands at the top of the README, one
# after the other. Prints the seconds of each; fails above the 15 minutes that the README promises.
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

# typed NAME COMMAND: as root in the root, with the network. The README has the name.
typed() {
	local name=$1 started=$SECONDS
	grep -qF "$name" README.md || { echo "README.md does not say: $name" >&2; exit 1; }
	# With the machine's /sys, which every machine has.
	unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" \
		sh -c 'mount --rbind /sys "$0/sys" && mount -t devpts devpts "$0/dev/pts" && exec chroot "$0" "$@"' "$root" \
		env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt bash -c "cd /src/gpu-node-exporter && $2" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
	printf '%-72s %4d s\n' "$name" $((SECONDS - started))
	# The stages of `make test`.
	sed -n 's/^\(.* ok  *[0-9]*s\)$/    \1/p' "$work/log"
}

started=$SECONDS
# It serves until it is stopped: a scrape is the proof.
typed 'make run' 'make run & run=$!; until exec 3<>/dev/tcp/127.0.0.1/9408; do kill -0 $run || exit 1; sleep 1; done 2>/dev/null
	printf "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&3 && grep -q gpu_exporter_build_info <&3
	kill $run; wait $run || true'
typed 'make test' 'make test'
# Without sudo, as there is one user.
typed 'make deb && sudo apt-get install ./.run/packages/*.deb' 'sudo() { "$@"; }
	yes | (make deb && sudo apt-get install ./.run/packages/*.deb) && gpu-node-exporter --version'
took=$((SECONDS - started))
printf '%-72s %4d s on %d cores\n' 'all' $took "$(nproc)"
[ $took -le 900 ] || { echo "more than the 15 minutes that the README promises" >&2; exit 1; }
