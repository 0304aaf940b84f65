#!/bin/sh
# Packages of the product: deb, rpm, and ipk and apk for OpenWrt, from static programs, into
# target/dist/packages. docs/install.md describes them.
#
#   deploy/dist/dist.sh     DIST_ARCHS: some of "x86_64 aarch64 armv7", or what can be built here
#                           DIST_BINARIES: a folder with programs that are built already, in place
#                           of building them; stripped here, for the one architecture of DIST_ARCHS;
#                           in its folder `box` may be roadweave as it is for OpenWrt
#                           DIST_PROGRAMS: some of the programs, each a package
set -eu
cd "$(dirname "$0")/../.."
CARGO="${CARGO:-cargo}"
OUT=$PWD/target/dist
FOLDER=$PWD/target/static
PROGRAMS=${DIST_PROGRAMS:-roadweave roadweave-admin roadweave-fleet roadweave-controller roadweave-lab roadweave-web}
# The newest whose parts the Go module proxy has.
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
export PATH="$OUT/tools/bin:$PATH"

# Packaged files have the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
. deploy/version.sh
export SOURCE_DATE_EPOCH VERSION TZ=UTC LC_ALL=C

missing=""
has() { command -v "$1" >/dev/null 2>&1; }
need() { has "$1" || missing="$missing $2"; }
if [ -z "${DIST_ARCHS:-}" ]; then
    DIST_ARCHS=x86_64
    if has aarch64-linux-gnu-gcc; then DIST_ARCHS="$DIST_ARCHS aarch64"; fi
    if has arm-linux-gnueabihf-gcc; then DIST_ARCHS="$DIST_ARCHS armv7"; fi
fi
for arch in $DIST_ARCHS; do
    case $arch in
        x86_64) need x86_64-linux-gnu-strip binutils-x86-64-linux-gnu ;;
        aarch64) need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross" ;;
        armv7) need arm-linux-gnueabihf-gcc "gcc-arm-linux-gnueabihf g++-arm-linux-gnueabihf libc6-dev-armhf-cross" ;;
        *) echo "DIST_ARCHS: $arch is none of x86_64, aarch64, armv7" >&2 && exit 2 ;;
    esac
done
if [ -z "${DIST_BINARIES:-}" ]; then
    source=$(/usr/bin/rustc --print sysroot 2>/dev/null || true)/lib/rustlib/src/rust/library
    [ -f "$source/Cargo.lock" ] || missing="$missing rustc-web rust-web-src"
fi
need cc gcc
need ar binutils
need xz xz-utils
if [ -n "$missing" ]; then
    if ! { has apt-get && [ "$(id -u)" -eq 0 ]; }; then
        echo "Packages are missing. Install them with:" >&2
        echo "    sudo apt-get install --yes --no-install-recommends$missing" >&2
        exit 1
    fi
    apt-get update --quiet=2
    # shellcheck disable=SC2086  # a list of packages
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends \
        $missing >/dev/null
fi
if ! has nfpm; then
    has go || { echo "nfpm is missing: install Go 1.24 or later, by which it is built" >&2 && exit 1; }
    GOBIN="$OUT/tools/bin" go install "$NFPM"
fi
has cargo-cyclonedx || "$CARGO" install --quiet --locked --root "$OUT/tools" cargo-cyclonedx@0.5.9

# The page that roadweave-web shows; programs that are built already include it.
without_web() {
    echo "roadweave-web is left out: $1" >&2
    PROGRAMS=$(echo " $PROGRAMS " | sed 's/ roadweave-web / /')
}
case " $PROGRAMS " in
    *" roadweave-web "*)
        if [ -n "${DIST_BINARIES:-}" ]; then
            [ -x "$DIST_BINARIES/roadweave-web" ] || without_web "it is not in $DIST_BINARIES"
        elif has npm; then
            npm ci --silent --no-audit --no-fund --prefix crates/web/page
            npm run --silent build --prefix crates/web/page
        else
            without_web "npm, which builds its page, is not installed"
        fi
        ;;
esac

rm -rf "$OUT/pages" "$OUT/sbom" "$OUT/packages" "$OUT/bin"
mkdir -p "$OUT/sbom" "$OUT/packages"
echo "$SOURCE_DATE_EPOCH" >"$OUT/epoch"

# crate PROGRAM: the folder of its crate.
crate() {
    case $1 in
        roadweave) echo crates/roadweave ;;
        roadweave-controller | roadweave-fleet) echo crates/control ;;
        roadweave-lab) echo tools/bench ;;
        roadweave-manual) echo tools/manual ;;
        *) echo "crates/${1#roadweave-}" ;;
    esac
}
# sbom PROGRAM TRIPLE: its components, in CycloneDX, without the path of the build.
sbom() {
    made=roadweave-dist-sbom
    "$CARGO" cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --target "$2" \
        --manifest-path "$(crate "$1")/Cargo.toml" --override-filename "$made"
    sed "s|path+file://$PWD/|path+file:///|g; s|file://$PWD/|file:///|g" \
        "$(crate "$1")/$made.json" >"$OUT/sbom/$1.$3.json"
    find crates tools -name "$made.json" -delete
}

# triple ARCH
triple() {
    case $1 in
        armv7) echo armv7-unknown-linux-gnueabihf ;;
        *) echo "$1-unknown-linux-gnu" ;;
    esac
}
# build ARCH: the programs, each static.
build() (
    . deploy/static.sh
    # static BINARY [arguments of cargo]
    static() {
        binary=$1
        shift
        dist rustc "$triple" --quiet --locked --bin "$binary" "$@" \
            --manifest-path "$(crate "$binary")/Cargo.toml" -- -C link-arg=$PAGE
    }
    triple=$(triple "$1")
    for program in $PROGRAMS; do
        if [ "$program" = roadweave ]; then
            static roadweave --no-default-features
            mkdir -p "$FOLDER/$triple/dist/box"
            cp "$FOLDER/$triple/dist/roadweave" "$FOLDER/$triple/dist/box/roadweave"
        fi
        static "$program"
        [ "$program" != roadweave-admin ] || static roadweave-manual
    done
)
# pages: the manual pages are the same for all architectures; a program of this machine makes them.
pages() {
    for folder in "${DIST_BINARIES:-}" "$FOLDER/$(triple "$(uname -m)")/dist"; do
        manual=$folder/roadweave-manual
        if "$manual" --version >/dev/null 2>&1; then break; fi
    done
    if ! "$manual" --version >/dev/null 2>&1; then
        "$CARGO" build --quiet --package roadweave-manual
        manual=${CARGO_TARGET_DIR:-target}/debug/roadweave-manual
    fi
    "$manual" pages "$OUT/pages"
}

if [ -z "${DIST_BINARIES:-}" ]; then
    rm -rf "$FOLDER"/*/dist/roadweave-manual
    for arch in $DIST_ARCHS; do build "$arch"; done
fi
pages
for arch in $DIST_ARCHS; do
    triple=$(triple "$arch")
    case $arch in
        armv7) prefix=arm-linux-gnueabihf ;;
        *) prefix=$arch-linux-gnu ;;
    esac
    mkdir -p "$OUT/bin/$arch"
    built=${DIST_BINARIES:-$FOLDER/$triple/dist}
    for program in $PROGRAMS; do
        binaries=$program
        [ "$program" != roadweave-admin ] || binaries="roadweave-admin roadweave-manual"
        for binary in $binaries; do
            "$prefix-strip" --strip-all -o "$OUT/bin/$arch/$binary" "$built/$binary"
        done
        if [ -f "$built/box/$program" ]; then
            mkdir -p "$OUT/bin/$arch/box"
            "$prefix-strip" --strip-all -o "$OUT/bin/$arch/box/$program" "$built/box/$program"
        fi
        sbom "$program" "$triple" "$arch"
        deploy/dist/pack.sh "$program" "$arch" "$OUT"
    done
done
(cd "$OUT/packages" && find . -type f -printf '%f\n' | sort | xargs sha256sum -- >"$OUT/sums" && mv "$OUT/sums" SHA256SUMS)
ls -l "$OUT/packages"
