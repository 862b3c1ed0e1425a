#!/usr/bin/env bash
# Checks and draws the status page in a browser (README.md). Arguments go to run.mjs. What npm fetches is in .tools/page,
# recordings and pictures in .run/page.
set -euo pipefail
cd "$(dirname "$0")/../.."
export REPOSITORY=$PWD
BUILT=$(realpath "${BUILT:-target/debug}")
export BUILT
here=tests/page
work=.tools/page
mkdir -p "$work"
# Newer than what was fetched for it?
if ! cmp -s $here/package-lock.json "$work/package-lock.json" || [ ! -e "$work/node_modules/.package-lock.json" ]; then
	echo "fetching the tools of the page's tests into $work (30 MB)"
	cp $here/package.json $here/package-lock.json "$work"/
	# Not `npm ci`: it refuses where a registry lacks a package for a system that this one is not. The lock file holds.
	(cd "$work" && npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel error)
fi
# What is shipped is what its makers published.
for file in uplot/dist/uPlot.iife.min.js uplot/dist/uPlot.min.css morphdom/dist/morphdom-umd.min.js; do
	cmp "$work/node_modules/$file" "crates/exposition/vendor/$(basename $file)"
done
cp $here/run.mjs $here/checks.mjs dashboards/preview/lib/stack.mjs "$work"/
cd "$work"
exec node run.mjs "$@"
