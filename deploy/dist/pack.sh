#!/bin/sh
# Packages one program from what dist.sh has made: pack.sh PROGRAM ARCH OUT. Equal bytes in OUT/bin,
# OUT/pages and OUT/sbom give equal packages.
set -eu
program=$1 arch=$2 out=$3
here=deploy/dist
case $arch in
    x86_64) deb=amd64 rpm=x86_64 machine=x86_64 ;;
    aarch64) deb=arm64 rpm=aarch64 machine=aarch64 ;;
    armv7) deb=armhf rpm=armv7hl machine="armv7l armv8l aarch64" ;;
esac
case $program in
    roadweave) about="One dependable, low-latency uplink out of several unreliable ones" ;;
    roadweave-admin) about="Roadweave: clients of a server, completions" ;;
    roadweave-fleet) about="Roadweave: a fleet from the command line" ;;
    roadweave-controller) about="Roadweave: the controller of a fleet" ;;
    roadweave-web) about="Roadweave: a page with what a client does, for a crew's phone" ;;
    roadweave-lab) about="Roadweave: demo, benches, experiments and recordings" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
date=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

# put FROM TO [MODE [TYPE]]: a file of the package, of the group $group. Its own copy: where it lay
# does not matter.
contents="" group=root
put() {
    copy="$work/files$2"
    mkdir -p "$(dirname "$copy")"
    cp "$1" "$copy"
    contents="$contents
  - { src: '$copy', dst: '$2', ${4:+type: '$4', }file_info: { mode: 0${3:-644}, owner: root, group: $group, mtime: '$date' } }"
}
folder() {
    contents="$contents
  - { dst: '$1', type: dir, file_info: { mode: 0$2, owner: root, group: $group, mtime: '$date' } }"
}
put_gz() {
    mkdir -p "$work/gz"
    gzip -9 --no-name <"$1" >"$work/gz/$(basename "$1").gz"
    put "$work/gz/$(basename "$1").gz" "$2"
}
# programs [FOLDER]: from there, below that of the architecture, if it has the program.
programs() {
    from="$out/bin/$arch/${1:-}/$program"
    [ -f "$from" ] || from="$out/bin/$arch/$program"
    put "$from" "/usr/bin/$program" 755
    [ "$program" != roadweave-admin ] ||
        put "$out/bin/$arch/roadweave-manual" /usr/bin/roadweave-manual 755
}
WEB_UNIT=roadweave-web@.service
# For a machine with a package manager, interactive shells and manual pages.
full() {
    contents=""
    programs
    for page in "$out/pages/$program"/man[15]/*; do
        put_gz "$page" "/usr/share/man/${page#"$out/pages/$program/"}.gz"
    done
    if [ -d "$out/pages/$program/bash" ]; then
        put "$out/pages/$program/bash/$program" "/usr/share/bash-completion/completions/$program"
        put "$out/pages/$program/zsh/_$program" "/usr/share/zsh/vendor-completions/_$program"
        put "$out/pages/$program/fish/$program.fish" \
            "/usr/share/fish/vendor_completions.d/$program.fish"
    fi
    put $here/copyright "/usr/share/doc/$program/copyright"
    put_gz CHANGELOG.md "/usr/share/doc/$program/CHANGELOG.md.gz"
    put_gz "$out/sbom/$program.$arch.json" "/usr/share/doc/$program/sbom.cdx.json.gz"
    if [ "$program" = roadweave ]; then
        # Readable for the services' user, which the packages' scripts create.
        group=roadweave
        folder /etc/roadweave 750
        put $here/client.toml.example /etc/roadweave/client.toml.example 640 "config|noreplace"
        put $here/server.toml.example /etc/roadweave/server.toml.example 640 "config|noreplace"
        group=root
        put_gz docs/configuration.md /usr/share/doc/roadweave/configuration.md.gz
        put_gz docs/machine.md /usr/share/doc/roadweave/machine.md.gz
        for unit in deploy/systemd/*.service; do
            [ "$unit" != "deploy/systemd/$WEB_UNIT" ] || continue
            put "$unit" "/usr/lib/systemd/system/$(basename "$unit")"
        done
    fi
    [ "$program" != roadweave-web ] ||
        put "deploy/systemd/$WEB_UNIT" "/usr/lib/systemd/system/$WEB_UNIT"
}
# For OpenWrt: no units, pages or completions, and no server. procd runs it as root.
small() {
    contents=""
    programs box
    put $here/copyright "/usr/share/doc/$program/copyright"
    if [ "$program" = roadweave ]; then
        folder /etc/roadweave 700
        put $here/openwrt/roadweave.init /etc/init.d/roadweave 755
        put $here/openwrt/toml.sh /usr/lib/roadweave/toml.sh
        put $here/openwrt/roadweave.config /etc/config/roadweave 600 config
        put $here/openwrt/roadweave.keep /lib/upgrade/keep.d/roadweave
    fi
}
# squeeze_deb FILE: its files by xz itself, a fifth smaller than by nfpm's own. `ar` in its mode D
# writes neither times nor owners.
squeeze_deb() {
    ar x "$1"
    xz -9e --threads=1 data.tar
    rm "$1"
    ar rcSD "$1" debian-binary control.tar.gz data.tar.xz
}
# squeeze_ipk FILE: by gzip itself, 6 % smaller. opkg reads nothing else.
squeeze_ipk() {
    tar -xzf "$1"
    gunzip data.tar.gz
    gzip -9 --no-name data.tar
    tar --format=ustar --owner=0 --group=0 --numeric-owner --mode=644 \
        --mtime="@$SOURCE_DATE_EPOCH" -cf - ./debian-binary ./data.tar.gz ./control.tar.gz |
        gzip -1 --no-name >"$1"
}
# squeeze_apk FILE: the same. It is two archives, one behind the other: the first has files with a
# dot and the sum of the second, in as many letters as before; the second begins with a folder.
squeeze_apk() {
    gzip -dc "$1" >both.tar
    files=$(tar -tRf both.tar 2>/dev/null | sed -n '/: \./d; s/^block \([0-9]*\): .*/\1/p' | head -n 1)
    tail -c +$((files * 512 + 1)) both.tar | gzip -9 --no-name >data.tar.gz
    sum=$(sha256sum data.tar.gz | cut -d ' ' -f 1)
    head -c $((files * 512)) both.tar | sed "s/^datahash = .*/datahash = $sum/" |
        gzip -9 --no-name >control.tar.gz
    cat control.tar.gz data.tar.gz >"$1"
}
# package TYPE ARCHITECTURE FILE SCRIPTS DEPENDS
package() {
    scripts=""
    for script in preinstall postinstall preremove postremove; do
        case $program in
            roadweave) from="$here/scripts/$4.$script" ;;
            *) from="$here/scripts/${program#roadweave-}-$4.$script" ;;
        esac
        [ -f "$from" ] || continue
        sed "s/@MACHINE@/$machine/" "$from" >"$work/$script"
        # An apk has the times of its scripts.
        touch --date="@$SOURCE_DATE_EPOCH" "$work/$script"
        scripts="$scripts
  $script: '$work/$script'"
    done
    cat >"$work/nfpm.yaml" <<EOF
name: $program
arch: $2
platform: linux
version: $VERSION
release: 1
mtime: "$date"
section: net
priority: optional
maintainer: Roadweave <roadweave@localhost>
description: "$about"
license: Apache-2.0
depends: [$5]
contents:$contents
${scripts:+scripts:$scripts}
deb: { compression: none }
rpm: { compression: "xz", buildhost: roadweave }
EOF
    nfpm package --config "$work/nfpm.yaml" --packager "$1" --target "$out/packages/$3" >"$work/said" ||
        { cat "$work/said" >&2 && exit 1; }
    case $1 in
        deb | ipk | apk) mkdir "$work/$1" && (cd "$work/$1" && "squeeze_$1" "$out/packages/$3") ;;
    esac
}
of_box="" of_deb="" of_rpm=""
case $program in
    roadweave) of_box="kmod-tun, nftables" of_deb="nftables, passwd" of_rpm="nftables, /usr/sbin/useradd" ;;
    roadweave-controller) ;;
    *) of_deb="'roadweave (= $VERSION-1)'" of_rpm="'roadweave = $VERSION-1'" ;;
esac
full
package deb "$deb" "${program}_$VERSION-1_$deb.deb" deb "$of_deb"
package rpm "$rpm" "$program-$VERSION-1.$rpm.rpm" rpm "$of_rpm"
if [ "$program" = roadweave ]; then
    # One static program for all targets of a processor, for which OpenWrt has dozens of names: the
    # package is for all, and looks at the machine before it is installed.
    small
    package ipk all "${program}_$VERSION-1_$arch.ipk" openwrt "$of_box"
    package apk all "$program-$VERSION-r1.$arch.apk" openwrt "$of_box"
fi
