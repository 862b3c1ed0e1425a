#!/usr/bin/env bash
# bare-root.sh DIR [PACKAGES]: a Debian 12 with nothing but apt in it, and these packages (comma-separated), by debootstrap; needs root.
# A root is kept in .tools and copied the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$1 packages=${2:-}
kept=.tools/bare-root${packages:+-$packages}.tar
[ "$(id -u)" = 0 ] || { echo 'error: making a root needs root: run this with sudo' >&2; exit 1; }
export PATH=$PATH:/usr/sbin:/sbin

if [ ! -e "$kept" ]; then
	# Where this machine gets its own packages, if it is a Debian.
	mirror=$(apt-get indextargets --format '$(SITE) $(ORIGIN)' 2>/dev/null | awk '$2 == "Debian" && $1 !~ /security/ { print $1; exit }')
	fresh=$(mktemp -d)
	chmod 755 "$fresh"
	debootstrap --variant=minbase ${packages:+--include=$packages} --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
		bookworm "$fresh" ${mirror:+"$mirror"} >"$fresh.log" 2>&1 || { cat "$fresh.log"; exit 1; }
	rm -f "$fresh"/var/cache/apt/archives/*.deb "$fresh.log"
	mkdir -p .tools
	tar --create --directory "$fresh" --file "$kept.$$" .
	rm -rf "$fresh"
	mv "$kept.$$" "$kept"
fi
mkdir -p "$dir"
tar --extract --directory "$dir" --file "$kept"
cp /etc/resolv.conf "$dir/etc/resolv.conf"
# As the installer writes it.
printf '127.0.0.1\tlocalhost\n' >"$dir/etc/hosts"
