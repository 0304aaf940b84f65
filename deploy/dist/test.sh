#!/bin/sh
# Installs what dist.sh has packaged for this machine's architecture, and removes it. As root.
#
#   deploy/dist/test.sh [sizes|equal|pages|scripts|deb|rpm|openwrt|walk]...
#
# Without a word it is all of them.
#
# A part that lacks something says so and is skipped; with ROADWEAVE_REQUIRE_TOOLS=1 it fails.
# The files of Debian are fetched once and kept in target/dist.
set -eu
cd "$(dirname "$0")/../.."
OUT=$PWD/target/dist PACKAGES=$PWD/target/dist/packages
ROOT=$(mktemp -d)
export OUT PACKAGES ROOT
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need mmdebstrap mmdebstrap
need rpm rpm
need busybox busybox
need systemd-analyze systemd
need man man-db
need ping iputils-ping
if [ -n "$missing" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    apt-get update --quiet=2 || true
    # shellcheck disable=SC2086  # a list of packages
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends \
        $missing >/dev/null || true
fi
# Nothing of another file system is removed: /proc of a root may be mounted still.
end() {
    for mounted in $(sed -n "s|^[^ ]* \($ROOT/[^ ]*\) .*|\1|p" /proc/mounts | sort -r); do
        umount --lazy "$mounted" || true
    done
    rm -rf --one-file-system "$ROOT"
}
trap end EXIT
passed=0 failed=0 skipped=0
for part in ${*:-sizes equal pages scripts deb rpm openwrt walk}; do
    code=0
    deploy/dist/tests/"$part".sh || code=$?
    case $code in
        0) passed=$((passed + 1)) && echo "$part: in order" ;;
        77) skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)) && echo "$part: failed" >&2 ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
