#!/bin/sh
# Checks the dependencies against deny.toml: licences, sources and bans, and advisories if their
# database is available (a git repository, https://github.com/rustsec/advisory-db).
#
#   deploy/deny.sh [--if-possible]    without cargo-deny: installs it, or with --if-possible
#                                     leaves it at crates/roadweave/tests/it/dependencies.rs,
#                                     a part of `make test`
set -eu
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"

if ! command -v cargo-deny >/dev/null 2>&1; then
    if [ "${1:-}" = --if-possible ]; then
        echo "cargo-deny is not installed: no advisories; make test looks at licences, sources and bans" >&2
        exit 0
    fi
    "$CARGO" install --locked cargo-deny
fi

"$CARGO" deny --locked check bans licenses sources
if timeout 120 "$CARGO" deny --locked fetch db 2>/dev/null; then
    "$CARGO" deny --locked check --disable-fetch advisories
elif [ "${1:-}" = --if-possible ]; then
    echo "the database of advisories cannot be had: they are not checked" >&2
else
    echo "the database of advisories cannot be had" >&2
    exit 1
fi
