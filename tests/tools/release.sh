#!/usr/bin/env bash
# release.sh [deb]: what a release consists of, in .run/packages: .deb, .rpm, tarball, SBOM, image, checksums and provenance, of one
# binary; with `deb` the .deb alone.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=gpu-node-exporter
out=.run/packages
root=$out/root
tools=$PWD/.tools
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
machine=$(uname -m)
for key in version appVersion; do
	grep -qx "$key: $version" deploy/chart/Chart.yaml || { echo "deploy/chart/Chart.yaml: $key is not $version, the version of Cargo.toml" >&2; exit 1; }
done
GNE_REVISION=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
export GNE_REVISION

rm -rf $out
mkdir -p $out
cargo build --release --locked -p $name
# Not before the build, which would compile again what `make run` has: dependencies' build scripts ask for it, and what they build has
# no date in it.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
binary=${CARGO_TARGET_DIR:-target}/release/$name
tests/tools/check-binary.sh "$binary"

# Every file once, where it will be installed.
share=$root/usr/share
install -Dm755 -t $root/usr/bin "$binary"
install -Dm644 -t $root/usr/lib/systemd/system systemd/$name.service
install -Dm644 systemd/$name.sysusers.conf $root/usr/lib/sysusers.d/$name.conf
install -Dm644 -t $share/$name/systemd systemd/optional/*
for file in deploy/{kubernetes,node-problem-detector,slurm}/*; do install -Dm644 "$file" "$share/$name/$file"; done
install -Dm644 systemd/$name.toml $root/etc/$name/config.toml
install -Dm644 -t $share/doc/$name README.md CHANGELOG.md SECURITY.md
install -Dm644 LICENSE $share/doc/$name/LICENSE
install -Dm644 .tools/hwloc/COPYING $share/doc/$name/LICENSE.hwloc
for licence in crates/exposition/vendor/*.LICENSE; do
	install -Dm644 "$licence" "$share/doc/$name/LICENSE.$(basename "$licence" .LICENSE)"
done
"$binary" assets --out $share/$name >/dev/null
"$binary" manual --out $share >/dev/null
chmod -R u=rwX,go=rX $root

"$tools/deb/bin/cargo-deb" --no-build --no-strip --quiet --output $out/
if [ "${1:-}" = deb ]; then
	ls $out/*.deb
	exit
fi
"$tools/packages/bin/cargo-generate-rpm" --output $out/
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --directory $root \
	--transform "s|^\.|$name-$version|" . | gzip -n9 >$out/$name-$version-linux-"$machine".tar.gz

# cargo-cyclonedx writes a file beside each manifest, so it gets a copy of them. hwloc, which is linked in, and the status page's
# libraries are no crates.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard -- 'Cargo.*' '*/Cargo.toml' '*.rs' '.cargo' | tar --null --files-from=- --create |
	tar --extract --directory "$copy"
(cd "$copy" && "$tools/packages/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --describe binaries)
hwloc=$(sed -n 's/^Version: //p' .tools/hwloc/lib/pkgconfig/hwloc.pc)
jq --arg version "$hwloc" --slurpfile npm tests/page/package-lock.json '.components += [{
	"type": "library", "bom-ref": "hwloc", "name": "hwloc", "version": $version, "purl": "pkg:generic/hwloc@\($version)",
	"licenses": [{"license": {"id": "BSD-3-Clause"}}]
}] + [("uplot", "morphdom") as $name | $npm[0].packages["node_modules/" + $name] | {
	"type": "library", "bom-ref": $name, "name": $name, "version": .version, "purl": "pkg:npm/\($name)@\(.version)",
	"licenses": [{"license": {"id": .license}}]
}]' "$copy/${name}_bin.cdx.json" | sed "s|file://$copy|file:///$name|g" >$out/$name.cdx.json

deploy/image/root.sh $root $out/$name.cdx.json .run/image
deploy/image/oci.py .run/image "$version" "$GNE_REVISION" $out/$name-$version-linux-"$machine".oci.tar

(cd $out && sha256sum -- *.deb *.rpm *.tar.gz *.cdx.json *.oci.tar >SHA256SUMS && cat SHA256SUMS)

# An unsigned statement of what they were built from, in in-toto's form; the release workflow has a signed one of its own.
jq --null-input --rawfile sums $out/SHA256SUMS --rawfile chart deploy/chart/Chart.yaml --arg version "$version" \
	--arg commit "$(git rev-parse HEAD 2>/dev/null || true)" \
	--argjson modified "$(git diff --quiet HEAD 2>/dev/null && echo false || echo true)" --arg lock "$(sha256sum Cargo.lock | cut -d' ' -f1)" --arg rustc "$(rustc --version)" --arg machine "$machine" '
	($chart | capture("home: (?<url>.*)").url) as $home | {
	"_type": "https://in-toto.io/Statement/v1",
	"subject": [$sums | scan("([0-9a-f]{64})  (.+)") | {"name": .[1], "digest": {"sha256": .[0]}}],
	"predicateType": "https://slsa.dev/provenance/v1",
	"predicate": {
		"buildDefinition": {
			"buildType": "\($home)/blob/v\($version)/tests/tools/release.sh",
			"externalParameters": {"source": $home, "version": $version},
			"internalParameters": {"rustc": $rustc, "machine": $machine},
			"resolvedDependencies": [
				{"uri": "git+\($home)", "annotations": {"modified": $modified}} +
					if $commit == "" then {} else {"digest": {"gitCommit": $commit}} end,
				{"name": "Cargo.lock", "digest": {"sha256": $lock}}
			]
		},
		"runDetails": {"builder": {"id": "\($home)/blob/v\($version)/Makefile"}}
	}
}' >$out/$name.provenance.json
