#!/bin/sh
# Runs the tests of the coding crate as on an ARM box: built for aarch64, run by qemu.
#
#   deploy/aarch64-test.sh [--if-possible] [arguments of cargo test]
#
# The standard library for aarch64 comes from Debian's rustc-web, so no rustup target is needed;
# cargo is the installed one. With --if-possible, tools that are missing and cannot be installed are
# no failure.
set -eu
cd "$(dirname "$0")/.."

TARGET=aarch64-unknown-linux-gnu
CROSS=aarch64-linux-gnu
DEBIAN_RUSTC=/usr/bin/rustc
PACKAGES="rustc-web libstd-rust-web-dev:arm64 gcc-$CROSS libc6-dev-arm64-cross qemu-user-static"

if_possible=no
if [ "${1:-}" = "--if-possible" ]; then
    if_possible=yes
    shift
fi

tools_are_there() {
    [ -x "$DEBIAN_RUSTC" ] || return 1
    command -v qemu-aarch64-static >/dev/null && command -v $CROSS-gcc >/dev/null || return 1
    std=$("$DEBIAN_RUSTC" --print target-libdir --target $TARGET 2>/dev/null) && [ -d "$std" ]
}

install_tools() {
    command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || return 1
    export DEBIAN_FRONTEND=noninteractive
    dpkg --add-architecture arm64 && apt-get update --quiet=2 || return 1
    # shellcheck disable=SC2086  # a list of packages
    apt-get install --quiet=2 --yes --no-install-recommends $PACKAGES >/dev/null
}

if ! tools_are_there && ! { install_tools && tools_are_there; }; then
    echo "The tests for aarch64 need these packages of Debian 12 or later:" >&2
    echo "    sudo dpkg --add-architecture arm64 && sudo apt-get update" >&2
    echo "    sudo apt-get install --yes --no-install-recommends $PACKAGES" >&2
    [ "$if_possible" = yes ] || exit 1
    echo "They cannot be had here; the tests for aarch64 are skipped." >&2
    exit 0
fi

export RUSTC="$DEBIAN_RUSTC"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$CROSS-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static
# Static, like the binary for a box; also, pthread_create of the shared glibc never returns under
# qemu 7.2.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static"
# qemu is about ten times slower than real hardware.
export PROPTEST_CASES="${PROPTEST_CASES:-32}"
exec "${CARGO:-cargo}" test --target $TARGET --target-dir target/aarch64 \
    --package roadweave-coding --lib --test it "$@" -- --skip theorem
