#!/usr/bin/env bash
# check-packages.sh SIMGPU: the packages of `make release` in a bare root: install, start by the unit's ExecStart line, scrape, upgrade with
# state and edited configuration kept, remove, purge. SIMGPU is the simulated driver's library. Prints a line a step.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=gpu-node-exporter packages=$PWD/.run/packages simgpu=$1
work=$(mktemp -d)
root=$work/root daemon=
trap 'stop; rm -rf "$work"' EXIT

fail() {
	printf 'FAILED: %s\n' "$@" >&2
	exit 1
}

# What is in the root, in namespaces of its own: another /proc, no other process, and the network only where it installs.
in_root() {
	unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}

apt() {
	in_root apt-get -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" >"$work/apt.log" 2>&1 || { cat "$work/apt.log"; fail "apt-get $*"; }
}

unit() {
	sed -n "s/^$1=//p" "$root/usr/lib/systemd/system/$name.service"
}

# Starts the daemon as systemd would by the unit's lines, and waits until it serves.
start() {
	local user command environment=()
	user=$(unit User) command=$(unit ExecStart)
	in_root install -d -o "$user" -g "$user" -m "$(unit StateDirectoryMode)" "/var/lib/$(unit StateDirectory)"
	in_root install -d -o "$user" -g "$user" -m "$(unit RuntimeDirectoryMode)" "/run/$(unit RuntimeDirectory)"
	[ ! -e "$root/etc/default/$name" ] || mapfile -t environment <"$root/etc/default/$name"
	unshare --net --mount --pid --fork --kill-child --mount-proc="$root/proc" sh -c 'ip link set lo up && exec "$@"' sh \
		chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
		env -i "${environment[@]}" $command 2>"$work/daemon.log" &
	daemon=$!
	for _ in $(seq 300); do
		[ -d "/proc/$daemon" ] || break
		if [ "$(scrape readyz | head -c 12)" = 'HTTP/1.1 200' ]; then return; fi
		sleep 0.1
	done
	cat "$work/daemon.log"
	fail "not ready within 30 s: $command"
}

stop() {
	[ -e "/proc/${daemon:-none}" ] || return 0
	kill -TERM "$(cat "/proc/$daemon/task/$daemon/children")"
	wait "$daemon" || fail "the daemon ends with exit code $?"
	daemon=
}

scrape() {
	nsenter --target "$daemon" --net bash -c 'exec 3<>/dev/tcp/127.0.0.1/9408 &&
		printf "GET /%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" "$1" >&3 && cat <&3' - "$1" 2>/dev/null || true
}

# has PATTERN: such a series is served, or will be soon.
has() {
	for _ in $(seq 100); do
		scrape metrics >"$work/metrics"
		if grep -qE "$1" "$work/metrics"; then return; fi
		sleep 0.1
	done
	fail "no series $1"
}

files() {
	(cd "$1" && find . -type f ! -path './usr/share/doc/*' | sed 's/\.gz$//' | sort)
}

(cd "$packages" && sha256sum --quiet --check SHA256SUMS)
deb=$(echo "$packages"/*.deb) rpm=$(echo "$packages"/*.rpm) tarball=$(echo "$packages"/*.tar.gz)
jq -e '.bomFormat == "CycloneDX" and
	(["tokio", "hwloc", "uplot", "morphdom"] - [.components[] | select(.version and .licenses) | .name] == [])' "$packages"/*.cdx.json >/dev/null ||
	fail 'the SBOM does not name what is linked and embedded'
jq -e --rawfile sums "$packages/SHA256SUMS" '.predicateType == "https://slsa.dev/provenance/v1" and
	([.subject[] | "\(.digest.sha256)  \(.name)\n"] | add) == $sums and
	(.predicate.buildDefinition.resolvedDependencies[0].digest.gitCommit | length) == 40' "$packages"/*.provenance.json >/dev/null ||
	fail 'the provenance is not that of the checksums and a commit'

# All three have the same files.
mkdir "$work/deb" "$work/rpm" "$work/tar"
dpkg-deb --extract "$deb" "$work/deb"
# It wants a size that cargo-generate-rpm does not write; whether all is there is compared below.
(cd "$work/rpm" && { rpm2cpio "$rpm" || true; } | cpio --extract --make-directories --quiet)
# The folder of Fedora's zsh.
mv "$work/rpm/usr/share/zsh/site-functions" "$work/rpm/usr/share/zsh/vendor-completions"
tar --extract --directory "$work/tar" --strip-components=1 --file "$tarball"
for other in rpm tar; do
	diff <(files "$work/deb") <(files "$work/$other") || fail "other files in the $other"
	cmp "$work/deb/usr/bin/$name" "$work/$other/usr/bin/$name"
done
missing=$(comm -13 <(files "$work/deb") <(sed 's/^/.\//' <<-FILES | sort
	etc/$name/config.toml
	usr/bin/$name
	usr/lib/systemd/system/$name.service
	usr/lib/sysusers.d/$name.conf
	usr/share/bash-completion/completions/$name
	usr/share/fish/vendor_completions.d/$name.fish
	usr/share/$name/alerts/alertmanager.yml
	usr/share/$name/alerts/faults.rules.yml
	usr/share/$name/alerts/optional/slurm.rules.yml
	usr/share/$name/dashboards/gpu-node-oncall.json
	usr/share/$name/deploy/kubernetes/device-taint-rule.yaml
	usr/share/$name/deploy/kubernetes/node-condition.yaml
	usr/share/$name/deploy/node-problem-detector/gpu-health.json
	usr/share/$name/deploy/slurm/gpu-health.sh
	usr/share/$name/deploy/slurm/gpu-record.sh
	usr/share/$name/systemd/$name.socket
	usr/share/$name/systemd/kernel-log.conf
	usr/share/man/man1/$name.1
	usr/share/man/man1/$name-health.1
	usr/share/zsh/vendor-completions/_$name
FILES
))
[ -z "$missing" ] || fail 'not in the packages:' "$missing"
for part in '' .hwloc .morphdom .uPlot; do
	for package in deb rpm tar; do
		[ -s "$work/$package/usr/share/doc/$name/LICENSE$part" ] || fail "no LICENSE$part in the $package"
	done
done
[ "$(rpm -qp --configfiles "$rpm" 2>/dev/null)" = "/etc/$name/config.toml" ] || fail 'configuration files of the rpm'
for need in systemd 'glibc >= 2.34'; do
	rpm -qp --requires "$rpm" 2>/dev/null | grep -qx "$need" || fail "the rpm does not require $need"
done
for step in postinstall preuninstall postuninstall; do
	rpm -qp --scripts "$rpm" 2>/dev/null | grep -q "^$step scriptlet" || fail "the rpm has no $step scriptlet"
done
echo "the same $(files "$work/deb" | wc -l) files in .deb, .rpm and tarball"

tests/tools/bare-root.sh "$root"
apt update
cp "$deb" "$root/tmp/$name.deb"
apt install "/tmp/$name.deb"
in_root getent passwd $name >/dev/null || fail 'no user'
if find "$root" -xdev \( -name 'libhwloc*' -o -name 'libnvidia*' \) | grep .; then fail 'hwloc or a driver is in the root'; fi
for page in "$root"/usr/share/man/man1/$name*.1.gz; do gzip -t "$page"; done
in_root bash -n "/usr/share/bash-completion/completions/$name"
in_root $name --version
echo 'installed, without hwloc and driver'

start
has '^gpu_exporter_build_info\{.*\} 1'
has '^gpu_driver_up 0'
stop
echo "serves by the unit's ExecStart, without a driver"

# With a driver, so that there is something to remember, and a setting of the administrator.
install -Dm755 "$simgpu" "$root/opt/simgpu/libnvidia-ml.so.1"
cp tests/scenarios/still-8xh200.toml "$root/opt/simgpu/scenario.toml"
chmod 1777 "$root/opt/simgpu"
cat >"$root/etc/default/$name" <<'SIMULATED'
GPU_NODE_EXPORTER__SAMPLER__NVML_LIBRARY=/opt/simgpu/libnvidia-ml.so.1
GPU_SIM_SCENARIO=/opt/simgpu/scenario.toml
GPU_SIM_STATE=/opt/simgpu/state
SIMULATED
sed -i 's/^rack = .*/rack = "r7"/' "$root/etc/$name/config.toml"
start
has '^gpu_devices_highest\{.*rack="r7".*\} 8'
stop
rm -rf "$root/opt/simgpu" "$root/etc/default/$name"

# The next version brings another configuration file.
dpkg-deb --raw-extract "$deb" "$work/next"
sed -i 's/^Version: .*/&+next/' "$work/next/DEBIAN/control"
echo '# of the next version' >>"$work/next/etc/$name/config.toml"
(cd "$work/next" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Znone --build "$work/next" "$root/tmp/next.deb" >/dev/null
apt install /tmp/next.deb
in_root dpkg-query --show $name | grep -q '+next$' || fail 'not upgraded'
grep -q '^rack = "r7"' "$root/etc/$name/config.toml" || fail 'the edited configuration is gone'
grep -q 'of the next version' "$root/etc/$name/config.toml.dpkg-dist" || fail 'the new configuration is not beside the edited one'
start
has '^gpu_devices_highest\{.*rack="r7".*\} 8'
stop
echo 'upgraded: state and edited configuration kept'

apt remove $name
[ ! -e "$root/usr/bin/$name" ] || fail 'removed, and the program is there'
[ -e "$root/etc/$name/config.toml" ] && [ -n "$(ls "$root/var/lib/$name")" ] || fail 'removed with configuration or state'
apt purge $name
left=$(find "$root" -xdev -name "*$name*" ! -path "$root/tmp/*" ! -path "$root/proc/*" ! -path '*/apt/*' ! -path '*/log/*')
[ -z "$left" ] || fail "left after the purge:" "$left"
echo 'removed, then purged: nothing left'
