#!/bin/sh
# What the product is to a vehicle's small box: the static programs for aarch64 and armv7, how large
# they are, whether they run, and what a packet costs on aarch64.
#
#   deploy/small-box.sh             all of it
#   deploy/small-box.sh programs    the programs; they stay in target/small-box/TARGET/dist
#   deploy/small-box.sh packet      instructions of both ends, by part of the program (paced)
#   deploy/small-box.sh client      instructions of a whole client and of the kernel for it, and its
#                                   memory, on an emulated Cortex-A53 under Debian's kernel
#
# Everything comes from Debian, so that no rustup target is needed; cargo stays the one that is
# there. The standard library is built from its source, for size, and since Debian 12 has no ready
# one for armv7 of the compiler's version.
set -eu
cd "$(dirname "$0")/.."

AARCH64=aarch64-unknown-linux-gnu
ARMV7=armv7-unknown-linux-gnueabihf
FOLDER=$PWD/target/small-box
# A packet of 1,200 bytes each so many microseconds: 7, 30 and 96 Mbit/s.
GAPS="1300 320 100"
# For so long the bench measures: LASTS of crates/tunnel/benches/paced.rs.
LASTS_US=4000000
# Mbit/s for the whole client. Both ends share one emulated core, which takes no more.
RATES="7 30 60"

what=${1:-all}
case $what in
    all | programs | packet | client) ;;
    *) sed -n 's/^# \{0,1\}//;2,10p' "$0" >&2 && exit 2 ;;
esac
does() { [ "$what" = all ] || [ "$what" = "$1" ]; }

missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
find_missing() {
    missing="" lists=""
    export RUSTC=/usr/bin/rustc
    source=$("$RUSTC" --print sysroot 2>/dev/null || true)/lib/rustlib/src/rust/library/Cargo.lock
    [ -f "$source" ] || missing="rustc-web rust-web-src"
    need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    need qemu-aarch64 qemu-user
    if does programs; then need arm-linux-gnueabihf-gcc "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"; fi
    if does packet; then need cc gcc && need python3 python3; fi
    if does client; then
        need qemu-system-aarch64 qemu-system-arm
        # What the emulated machine runs is unpacked from packages, and not installed.
        apt-cache show busybox-static:arm64 >/dev/null 2>&1 || lists="of arm64"
    fi
    [ -z "$missing$lists" ]
}
install_missing() {
    command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || return 1
    export DEBIAN_FRONTEND=noninteractive
    dpkg --add-architecture arm64 && apt-get update --quiet=2 || return 1
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086  # a list of packages
    apt-get install --quiet=2 --yes --no-install-recommends $missing >/dev/null
}
if ! find_missing && ! { install_missing && find_missing; }; then
    echo "Packages of Debian 12 or later are missing, or apt's lists of those for arm64:" >&2
    echo "    sudo dpkg --add-architecture arm64 && sudo apt-get update" >&2
    [ -z "$missing" ] || echo "    sudo apt-get install --yes --no-install-recommends $missing" >&2
    exit 1
fi

. deploy/static.sh
# program TARGET PREFIX QEMU: builds it, and says how large it is.
program() {
    dist rustc "$1" --quiet --package roadweave --bin roadweave --no-default-features -- -C link-arg=$PAGE
    built=$FOLDER/$1/dist/roadweave
    "$2-strip" -o "$built.stripped" "$built"
    "$3" "$built.stripped" --help >"$built.help"
    grep -q '^  client ' "$built.help" || { echo "$1: --help says nothing of client" >&2 && exit 1; }
    # What it is without is told.
    "$3" "$built.stripped" server 2>&1 | grep -q 'built for boxes' ||
        { echo "$1: server is not refused" >&2 && exit 1; }
    printf '%-32s %9d bytes, stripped and static; --help runs\n' "$1" "$(stat -c %s "$built.stripped")"
}
mkdir -p "$FOLDER"
if does programs || does client; then program $AARCH64 aarch64-linux-gnu qemu-aarch64; fi
if does programs; then program $ARMV7 arm-linux-gnueabihf qemu-arm; fi

if does packet; then
    cc -O2 -shared -fPIC -o "$FOLDER/count.so" deploy/small-box/count.c
    bench=$(dist bench $AARCH64 --package roadweave-tunnel --bench paced --no-run 2>&1 |
        tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
    for gap in $GAPS; do
        counts=$FOLDER/counts.$gap
        plugin=$FOLDER/count.so,out=$counts,begin=8measured,phase=11client_turn,phase=11server_turn
        echo
        qemu-aarch64 -plugin "$plugin" "$bench" "$gap"
        deploy/small-box/parts.py --nm aarch64-linux-gnu-nm --addr2line aarch64-linux-gnu-addr2line \
            --phases ",client,server" --packets $((LASTS_US / gap)) "$bench" "$counts"
    done
fi

if does client; then
    echo
    # shellcheck disable=SC2086  # a list of rates
    deploy/small-box/machine.sh "$FOLDER/$AARCH64/dist/roadweave.stripped" "$FOLDER/machine" $RATES
fi
