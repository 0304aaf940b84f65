# Settings of the static programs for boxes and packages; read by deploy/dist/dist.sh, which sets
# FOLDER, the target folder of cargo.
#
# The compiler is Debian's, because the source of its standard library is installed and is built for
# size.
# shellcheck shell=sh disable=SC2034

# The largest page size of kernels that can load the program; the program's size is a multiple of
# it. Boxes have pages of 4 KiB, some aarch64 kernels 16 KiB; the linkers' default of 64 KiB is for
# some servers.
PAGE=-Wl,-z,max-page-size=0x4000
# Building the standard library with cargo is not stable yet. Backtraces are left out, since a
# stripped program has no symbols for them.
export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_LINKER=arm-linux-gnueabihf-gcc
# Static, to run with any C library or without one. Panics unwind only from calls; unwind tables for
# every instruction, for debuggers and profilers, would add about 80 kB. armv7 has other tables, and
# uses Thumb-2 instructions, which are half as long, like Debian.
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
