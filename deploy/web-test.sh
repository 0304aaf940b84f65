#!/bin/sh
# Tests the page of roadweave-web in Chromium with axe-core: builds the page, embeds it in the
# program, and runs it. Missing tools are reported and the test is skipped; with
# ROADWEAVE_REQUIRE_TOOLS=1 it fails.
#
#   deploy/web-test.sh [--pictures FOLDER [--after SECONDS]]
#
# After `make web` and `make test`, WEB_IS_BUILT=1 uses the program built by the tests.
set -eu
cd "$(dirname "$0")/.."
skip() {
    [ "${ROADWEAVE_REQUIRE_TOOLS:-}" != 1 ] || { echo "web: not tried: $1" >&2 && exit 1; }
    echo "web: skipped: $1"
    exit 0
}
for tool in node npm chromium; do
    command -v $tool >/dev/null 2>&1 || skip "$tool is not installed"
done
page=crates/web/page
[ -f $page/node_modules/.package-lock.json ] || npm ci --silent --no-audit --no-fund --prefix $page
if [ "${WEB_IS_BUILT:-}" != 1 ]; then
    npm run --silent build --prefix $page
    "${CARGO:-cargo}" build --quiet --package roadweave-web
fi
node --test $page/test/samples.js
exec node $page/test/browser.js --program "${CARGO_TARGET_DIR:-target}/debug/roadweave-web" \
    --chromium "$(command -v chromium)" "$@"
