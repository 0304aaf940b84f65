# How the static programs for boxes and packages are built; read by deploy/dist/dist.sh, which sets
# FOLDER, where cargo builds.
#
# The compiler is Debian's, since its standard library's source is there, and is built for size.
# shellcheck shell=sh disable=SC2034

# The largest page of a kernel that can load the program, whose size goes by steps of as much.
# Boxes have pages of 4 KiB, and a few kernels for aarch64 16 KiB; the linkers' own 64 KiB are those
# of some servers.
PAGE=-Wl,-z,max-page-size=0x4000
# What makes cargo build the standard library is not stable yet. Without symbols, which a stripped
# program has not, there is nothing for it to tell backtraces by.
export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_LINKER=arm-linux-gnueabihf-gcc
# Static, for any C library that a box may have, or none. A panic unwinds from calls alone; tables
# that are right at each other instruction too, for debuggers and profilers, are some 80 kB larger.
# armv7 has tables of another kind, and the instructions of Thumb-2, which are half as long: so does
# Debian build for it.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static -Z use-sync-unwind=yes"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static -Z use-sync-unwind=yes"
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_RUSTFLAGS="-C target-feature=+crt-static,+thumb-mode"
# dist COMMAND TARGET [arguments of cargo]
dist() {
    command=$1 target=$2
    shift 2
    "${CARGO:-cargo}" "$command" --profile dist --target "$target" --target-dir "$FOLDER" \
        -Z build-std=std,panic_unwind -Z build-std-features=panic-unwind,optimize_for_size \
        --config 'profile.dist.package.core.opt-level="s"' \
        --config 'profile.dist.package.alloc.opt-level="s"' \
        --config 'profile.dist.package.std.opt-level="s"' "$@"
}
