#!/usr/bin/env bash
# Draws the dashboards and checks what is drawn (README.md). Arguments go to run.mjs. Everything it makes is in .tools/preview
# (what npm fetched, and the page) and .run/preview (recordings, data, pictures); PREVIEW_DIR, RUN_DIR and PREVIEW_PORT set other
# ones, so that two runs can go on at once.
set -euo pipefail
cd "$(dirname "$0")/../.."
export REPOSITORY=$PWD
[ -z "${BUILT:-}" ] || BUILT=$(realpath "$BUILT")
[ -z "${PROMETHEUS:-}" ] || PROMETHEUS=$(realpath "$PROMETHEUS")
here=dashboards/preview
work=${PREVIEW_DIR:-.tools/preview}
mkdir -p "$work"

# Newer than what was fetched for it?
if ! cmp -s $here/package-lock.json "$work/package-lock.json" || [ ! -e "$work/node_modules/.package-lock.json" ]; then
	echo "fetching Grafana's components into $work (640 MB, about a minute)"
	cp $here/package.json $here/package-lock.json "$work"/
	# Not `npm ci`: it refuses where a registry lacks a package for a system that this one is not. The lock file holds.
	(cd "$work" && npm install --no-save --legacy-peer-deps --ignore-scripts --no-audit --no-fund --loglevel error)
fi
if ! diff -rq $here/src "$work/src" >/dev/null 2>&1 || ! cmp -s $here/vite.config.js "$work/vite.config.js" || [ ! -e "$work/dist/index.html" ]; then
	echo "building the page (about a minute)"
	rm -rf "$work/src" "$work/dist"
	cp -r $here/src $here/index.html $here/vite.config.js "$work"/
	(cd "$work" && ./node_modules/.bin/vite build --logLevel error)
fi
rm -rf "$work/lib"
cp -r $here/lib $here/run.mjs "$work"/
cd "$work"
exec node run.mjs "$@"
