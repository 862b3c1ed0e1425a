#!/usr/bin/env bash
# root.sh STAGED SBOM OUT: writes the root file system of the container image to OUT, from the files that `make release` staged and the C
# library of this Debian's packages, which apt verifies. It has no shell and no driver.
# The script does not need root, because oci.py sets the owners.
set -euo pipefail
staged=$(realpath "$1") sbom=$(realpath "$2") name=gpu-node-exporter
out=$(realpath -m "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf "$out"
mkdir -p "$out"/usr/{bin,lib} "$out/usr/share/doc/$name" "$out"/var/lib/{dpkg/status.d,$name} "$out/run/$name" "$out/etc/$name"/{config,web} \
	"$out"/{dev,host,pod-resources,proc,relay,sys,tmp}
ln -s usr/lib "$out/lib"
ln -s ../run "$out/var/run"
install -m755 -t "$out/usr/bin" "$staged/usr/bin/$name"
install -m644 -t "$out/usr/share/doc/$name" "$staged/usr/share/doc/$name"/LICENSE*
printf '%s\n' 'root:x:0:0::/:/none' "$name:x:194080:194080::/var/lib/$name:/none" >"$out/etc/passwd"
# With this file, libnvidia-container mounts the driver's libraries in /usr/lib/ARCHITECTURE-linux-gnu, which the loader searches.
echo 12 >"$out/etc/debian_version"
printf '%s\n' 'root:x:0:' "$name:x:194080:" >"$out/etc/group"

# fetch PACKAGE: downloads a package and unpacks it to $work/PACKAGE.
fetch() {
	(cd "$work" && { apt-get download -q "$1" || { apt-get -qq update && apt-get download -q "$1"; }; } >log 2>&1) ||
		{ cat "$work/log"; exit 1; }
	dpkg-deb --extract "$work/$1"_*.deb "$work/$1"
}

# The program requires the first four. The driver's libraries require the others, which are empty since glibc 2.34.
libraries='ld-linux[^/]*|libc|libm|libgcc_s|libdl|libpthread|librt'
components='[]'
fetch libc6
fetch libgcc-s1
# The documents of libgcc-s1 are a link to those of another package.
base=$(readlink "$work/libgcc-s1/usr/share/doc/libgcc-s1")
fetch "$base"
install -Dm644 -t "$out/usr/share/doc/libc6" "$work/libc6/usr/share/doc/libc6/copyright"
install -Dm644 -t "$out/usr/share/doc/$base" "$work/$base/usr/share/doc/$base/copyright"
for package in libc6 libgcc-s1; do
	# Image scanners read this folder.
	dpkg-deb --field "$work/$package"_*.deb >"$out/var/lib/dpkg/status.d/$package"
	# Merged into /usr, as on all current Debian and Ubuntu systems.
	for folder in "$work/$package"/{,usr/}lib{,64}; do
		[ -d "$folder" ] || continue
		into=$out/usr/${folder##*/}
		mkdir -p "$into"
		(cd "$folder" && find . -regextype posix-extended -regex ".*/($libraries)\.so\.[0-9]+" \
			-exec cp --no-dereference --parents --target-directory "$into" {} +)
	done
	components=$(dpkg-deb --show --showformat='${Package} ${Version} ${Architecture}' "$work/$package"_*.deb |
		jq --raw-input --argjson before "$components" 'split(" ") as [$name, $version, $arch] | $before + [{
			"type": "library", "bom-ref": $name, "name": $name, "version": $version,
			"purl": "pkg:deb/debian/\($name)@\($version | @uri)?arch=\($arch)"
		}]')
done
[ ! -d "$out/usr/lib64" ] || ln -s usr/lib64 "$out/lib64"
jq --argjson more "$components" '.components += $more' "$sbom" >"$out/usr/share/doc/$name/sbom.cdx.json"
chmod -R u=rwX,go=rX "$out"
chmod 1777 "$out/tmp"
