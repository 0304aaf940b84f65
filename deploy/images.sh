#!/bin/sh
# Builds the container images of the back-end with buildah, from static binaries only:
#
#   NAME:TAG             roadweave, for proxies: no shell, no library, no right
#   NAME-anchor:TAG      the same with nft, for anchors and servers
#   NAME-controller:TAG  roadweave-controller
#
#   deploy/images.sh [NAME [TAG]]     NAME: localhost/roadweave; TAG: the version
set -eu
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
target="${CARGO_TARGET_DIR:-target}"
name="${1:-localhost/roadweave}"
. deploy/version.sh
tag="${2:-$VERSION}"
# Many machines do not let a container builder create namespaces.
export BUILDAH_ISOLATION=chroot
export STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"

need() { command -v "$1" >/dev/null 2>&1 || missing="${missing:-} $2"; }
need buildah buildah
need mmdebstrap mmdebstrap
need strip binutils
if [ -n "${missing:-}" ]; then
    echo "Packages are missing. Install them with:" >&2
    echo "    sudo apt-get install --yes --no-install-recommends$missing" >&2
    exit 1
fi

triple=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="-C target-feature=+crt-static" "$CARGO" build --quiet --release --target "$triple" \
    --package roadweave --package roadweave-control --target-dir "$target/images"
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
for program in roadweave roadweave-controller; do
    strip --strip-all -o "$parts/$program" "$target/images/$triple/release/$program"
done
# nft and its libraries, from Debian; nothing of it is run here.
mmdebstrap --quiet --variant=extract --include=nftables \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$parts/nftables.tar"
mkdir "$parts/nftables"
tar --extract --file "$parts/nftables.tar" --directory "$parts/nftables" \
    --exclude=./dev --exclude=./etc --exclude=./var --exclude=./usr/share --exclude=./lib/systemd

# image SUFFIX PROGRAM USER [FOLDER]
image() {
    container=$(buildah from scratch)
    [ -z "${4:-}" ] || buildah add --quiet "$container" "$4" / >/dev/null
    buildah copy --quiet --chmod 755 "$container" "$parts/$2" "/$2" >/dev/null
    buildah config --entrypoint "[\"/$2\"]" --cmd "" --user "$3" --workingdir / \
        --env PATH=/:/usr/sbin:/usr/bin:/sbin:/bin \
        --label org.opencontainers.image.title="$2" \
        --label org.opencontainers.image.version="$VERSION" \
        --label org.opencontainers.image.revision="$(git rev-parse HEAD)" "$container"
    buildah commit --quiet --rm --timestamp "$(git log -1 --format=%ct)" "$container" \
        "$name$1:$tag" >/dev/null
    echo "$name$1:$tag"
}
image "" roadweave 65532:65532
image -anchor roadweave 0:0 "$parts/nftables"
image -controller roadweave-controller 65532:65532
