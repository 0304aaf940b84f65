#!/bin/sh
# Builds the pages of docs/ as a site, target/book/index.html, and checks its links.
#
#   deploy/book.sh [--if-possible]    without mdbook: installs it into target/tools, or with
#                                     --if-possible leaves the links at tools/manual/src/links.rs,
#                                     a part of `make test`
set -eu
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
PATH="$PWD/target/tools/bin:$PATH"

if ! command -v mdbook >/dev/null 2>&1; then
    if [ "${1:-}" = --if-possible ]; then
        echo "mdbook is not installed: no book; make test looks at the links of its pages" >&2
        exit 0
    fi
    "$CARGO" install --locked mdbook@0.5.4 --no-default-features --features search \
        --root target/tools
fi

scripts/book.py prepare target/book-source
rm -rf target/book
mdbook build target/book-source
scripts/book.py check target/book
