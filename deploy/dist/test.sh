#!/bin/sh
# Installs what dist.sh has packaged for this machine's architecture, and removes it: deb in a root
# of Debian, rpm in an empty root, ipk and apk by their scripts under busybox. As root.
#
#   deploy/dist/test.sh     some two minutes
set -eu
cd "$(dirname "$0")/../.."
packages=$PWD/target/dist/packages
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need mmdebstrap mmdebstrap
need rpm rpm
need busybox busybox
need systemd-analyze systemd
need man man-db
[ "$(id -u)" -eq 0 ] || { echo "deploy/dist/test.sh: only root can install packages" >&2 && exit 1; }
if [ -n "$missing" ]; then
    apt-get update --quiet=2
    # shellcheck disable=SC2086  # a list of packages
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends \
        $missing >/dev/null
fi
root=$(mktemp -d)
# mmdebstrap mounts /proc there, and leaves it when it is killed: nothing of another file system is
# removed.
end() {
    umount "$root/debian/proc" 2>/dev/null || true
    rm -rf --one-file-system "$root"
}
trap end EXIT
fail() { echo "$1" >&2 && exit 1; }
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# The vehicle's package is to be small.
SIZE_MAX=${DIST_SIZE_MAX:-4000000}
for file in "$packages"/roadweave[-_]"$version"-*; do
    size=$(stat -c %s "$file")
    echo "$size bytes: ${file##*/}"
    [ "$size" -lt $SIZE_MAX ] || fail "${file##*/} has more than $SIZE_MAX bytes"
done

# Units, as installed and with the program beside them.
# units ROOT
units() {
    for unit in roadweave-client@client roadweave-server roadweave@proxy; do
        file="$1/usr/lib/systemd/system/$(echo "$unit" | sed 's/@.*/@/').service"
        try="$root/units/$unit.service"
        mkdir -p "$root/units"
        sed "s|/usr/bin/roadweave |$1/usr/bin/roadweave |" "$file" >"$try"
        said=$(systemd-analyze verify --man=no "$try" 2>&1 | grep "$unit" || true)
        [ -z "$said" ] || fail "$unit: $said"
        systemd-analyze security --offline=true --threshold=50 "$try" >/dev/null ||
            fail "$unit: exposed more than 5.0 of 10"
    done
}
# installed ROOT: what every package of the product brings.
installed() {
    chroot "$1" /usr/bin/roadweave --help | grep -q '^  client ' || fail "--help says nothing"
    [ "$(chroot "$1" /usr/bin/roadweave --version)" = "roadweave $version" ] || fail "another version"
    [ "$(stat -c %a "$1/etc/roadweave")" = 700 ] || fail "/etc/roadweave is open"
    for page in roadweave roadweave-client roadweave-uplink-set; do
        MANWIDTH=80 man --warnings --local-file "$1/usr/share/man/man1/$page.1.gz" \
            2>"$root/warnings" >"$root/page"
        [ ! -s "$root/warnings" ] && grep -q SYNOPSIS "$root/page" || fail "$page(1): $(cat "$root/warnings")"
    done
    bash -n "$1/usr/share/bash-completion/completions/roadweave" || fail "bash: completions"
    said=$(bash -c '. "$1"; COMP_WORDS=(roadweave cli) COMP_CWORD=1 COMP_LINE="roadweave cli"
        COMP_POINT=13; _roadweave roadweave cli roadweave; echo "${COMPREPLY[*]}"' - \
        "$1/usr/share/bash-completion/completions/roadweave")
    [ "$said" = client ] || fail "bash completes cli to $said"
    ls "$1/usr/share/doc/roadweave/copyright" "$1/usr/share/doc/roadweave/sbom.cdx.json.gz" >/dev/null
    ! grep -rl 'private_key = "[^"]' "$1/etc/roadweave" || fail "a package has a key"
    units "$1"
}

# deb: a root with little more than dpkg, and what the package wants.
deb=$(dpkg --print-architecture)
mmdebstrap --quiet --variant=minbase --include=nftables \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root/debian"
cp "$packages"/roadweave_*_"$deb".deb "$root/debian/roadweave.deb"
chroot "$root/debian" dpkg --install /roadweave.deb >/dev/null
installed "$root/debian"
if [ -f "$packages/roadweave-admin_$version-1_$deb.deb" ]; then
    cp "$packages/roadweave-admin_$version-1_$deb.deb" "$root/debian/admin.deb"
    chroot "$root/debian" dpkg --install /admin.deb >/dev/null
    chroot "$root/debian" roadweave completions zsh | grep -q '#compdef roadweave' || fail "no completions"
    chroot "$root/debian" roadweave peer --help >/dev/null
    chroot "$root/debian" dpkg --purge roadweave-admin >/dev/null
fi
chroot "$root/debian" roadweave init --server vpn.example:4433 /etc/roadweave >/dev/null
chroot "$root/debian" roadweave client --check --config /etc/roadweave/client.toml >/dev/null
mkdir -p "$root/debian/var/lib/roadweave"
# Again over itself, as an upgrade; then what a person has written stays.
chroot "$root/debian" dpkg --install /roadweave.deb >/dev/null
chroot "$root/debian" dpkg --purge roadweave >/dev/null 2>&1
left=$(cd "$root/debian" && find etc usr var/lib/roadweave -path '*roadweave*' -not -path 'usr/share/doc*' 2>/dev/null | sort | tr '\n' ' ')
[ "$left" = "etc/roadweave etc/roadweave/client.toml etc/roadweave/server.toml " ] ||
    fail "purge left: $left"
echo "deb is in order"

# rpm: an empty root; scripts need a shell, which is busybox's.
mkdir -p "$root/rpm/bin" "$root/rpm/etc"
busybox=$(command -v busybox)
if ldd "$busybox" >/dev/null 2>&1; then
    for library in $(ldd "$busybox" | sed -n 's|^[^/]*\(/[^ ]*\).*|\1|p'); do
        mkdir -p "$root/rpm$(dirname "$library")" && cp -L "$library" "$root/rpm$library"
    done
fi
cp "$busybox" "$root/rpm/bin/busybox"
for name in sh chmod; do ln -s busybox "$root/rpm/bin/$name"; done
rpm=$(ls "$packages"/roadweave-"$version"-1."$(uname -m)".rpm)
rpm --root "$root/rpm" --initdb
rpm --root "$root/rpm" --install --nodeps --nosignature "$rpm"
installed "$root/rpm"
rpm --root "$root/rpm" --verify --nodeps roadweave || fail "rpm: files are not as packaged"
echo key >"$root/rpm/etc/roadweave/client.toml"
rpm --root "$root/rpm" --erase --nodeps roadweave
left=$(cd "$root/rpm" && find etc/roadweave usr -type f 2>/dev/null | grep roadweave | tr '\n' ' ')
[ "$left" = "etc/roadweave/client.toml " ] || fail "rpm left: $left"
echo "rpm is in order"

# ipk and apk: unpacked, and their scripts run.
mkdir -p "$root/ipk/control" "$root/ipk/root" "$root/apk"
tar -xzf "$packages/roadweave_$version-1_$(uname -m).ipk" -C "$root/ipk"
tar -xzf "$root/ipk/control.tar.gz" -C "$root/ipk/control"
tar -xzf "$root/ipk/data.tar.gz" -C "$root/ipk/root"
tar -xzf "$packages/roadweave-$version-r1.$(uname -m).apk" -C "$root/apk" 2>/dev/null
grep -q '^Architecture: all$' "$root/ipk/control/control" || fail "ipk: not for all"
grep -q '/etc/config/roadweave' "$root/ipk/control/conffiles" || fail "ipk: its configuration is lost by an upgrade"
busybox sh "$root/ipk/control/preinst" || fail "ipk: it is not for this machine"
sed 's/for machine in .*;/for machine in vax;/' "$root/ipk/control/preinst" >"$root/vax"
! busybox sh "$root/vax" 2>/dev/null || fail "ipk: it is for every machine"
mkdir -p "$root/ipk/root/etc/rc.d"
IPKG_INSTROOT="$root/ipk/root" busybox sh "$root/ipk/control/postinst"
[ -x "$root/ipk/root/etc/rc.d/S90roadweave" ] || fail "ipk: it does not start with the machine"
for tree in "$root/ipk/root" "$root/apk"; do
    [ "$(stat -c %a "$tree/etc/roadweave")" = 700 ] || fail "/etc/roadweave is open"
    deploy/dist/openwrt/test.sh "$tree/usr/bin/roadweave" "$tree"
done
echo "ipk and apk are in order"
