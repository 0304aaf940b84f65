# Shared by the tests of packages; sourced by each. deploy/dist/test.sh sets OUT, PACKAGES and
# ROOT, a folder that is removed afterwards.
# shellcheck shell=sh
set -eu
cd "$(dirname "$0")/../../.."
part=$(basename "$0" .sh)
# shellcheck disable=SC2034
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
fail() { echo "$part: $1" >&2 && exit 1; }
skip() {
    [ "${ROADWEAVE_REQUIRE_TOOLS:-}" != 1 ] || fail "not tried: $1"
    echo "$part: skipped: $1" && exit 77
}
has() { command -v "$1" >/dev/null 2>&1; }
needs() { for tool in "$@"; do has "$tool" || skip "$tool is not installed"; done; }
needs_root() { [ "$(id -u)" -eq 0 ] || skip "only root can install packages"; }
# package FILE: checks that dist.sh has made it.
package() { [ -f "$PACKAGES/$1" ] || skip "there is no $1: make dist"; }

# debian FOLDER: a root with little more than dpkg and apt.
debian() {
    needs mmdebstrap dpkg
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    base=$OUT/debian-$codename.tar
    if [ ! -f "$base" ]; then
        mmdebstrap --quiet --format=tar --variant=minbase "$codename" "$base.new" >"$ROOT/mmdebstrap" 2>&1 ||
            skip "no mirror of Debian $codename was reached: $(tail -n 1 "$ROOT/mmdebstrap")"
        mv "$base.new" "$base"
    fi
    mkdir -p "$1"
    tar -xf "$base" -C "$1"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d" && chmod 755 "$1/usr/sbin/policy-rc.d"
    chroot "$1" apt-get update --quiet=2 >"$ROOT/apt" 2>&1 ||
        skip "no mirror of Debian $codename was reached: $(tail -n 1 "$ROOT/apt")"
}
# install FOLDER DEB...: by apt, with the dependencies.
install() {
    where=$1
    shift
    files=""
    for deb in "$@"; do cp "$PACKAGES/$deb" "$where/root/" && files="$files /root/$deb"; done
    # shellcheck disable=SC2086  # a list of files
    DEBIAN_FRONTEND=noninteractive chroot "$where" apt-get install --quiet=2 --yes \
        --no-install-recommends --reinstall $files >"$ROOT/apt" 2>&1 || fail "apt: $(tail -n 3 "$ROOT/apt")"
}

# units FOLDER: as installed, and with the program beside them.
units() {
    has systemd-analyze || { echo "$part: units are not tried: systemd-analyze is not installed" && return; }
    for unit in roadweave-client@client roadweave-server roadweave@proxy; do unit "$1" $unit; done
}
# unit FOLDER NAME: one of them.
unit() {
    has systemd-analyze || return 0
    file="$1/usr/lib/systemd/system/$(echo "$2" | sed 's/@.*/@/').service"
    try="$ROOT/units/$2.service"
    mkdir -p "$ROOT/units"
    sed "s|/usr/bin/roadweave|$1/usr/bin/roadweave|" "$file" >"$try"
    said=$(systemd-analyze verify --man=no "$try" 2>&1 | grep "$2" || true)
    [ -z "$said" ] || fail "$2: $said"
    systemd-analyze security --offline=true --threshold=50 "$try" >/dev/null ||
        fail "$2: exposed more than 5.0 of 10"
}
# installed FOLDER: checks what every full package contains.
installed() {
    chroot "$1" /usr/bin/roadweave --help | grep -q '^  client ' || fail "--help says nothing"
    said=$(chroot "$1" /usr/bin/roadweave --version)
    [ "${said%% (*}" = "roadweave $version" ] || fail "another version: $said"
    group=$(sed -n 's/^roadweave:[^:]*:\([0-9]*\):.*/\1/p' "$1/etc/group")
    for shared in 750:. 640:client.toml.example 640:server.toml.example; do
        [ "$(stat -c %u:%g:%a "$1/etc/roadweave/${shared#*:}")" = "0:$group:${shared%:*}" ] ||
            fail "/etc/roadweave/${shared#*:} is open to other users"
    done
    for file in man/man1/roadweave-uplink-set.1.gz man/man5/roadweave.toml.5.gz \
        doc/roadweave/copyright doc/roadweave/sbom.cdx.json.gz bash-completion/completions/roadweave \
        zsh/vendor-completions/_roadweave fish/vendor_completions.d/roadweave.fish; do
        [ -f "$1/usr/share/$file" ] || fail "no /usr/share/$file"
    done
    ! grep -rl 'private_key = "[^"]' "$1/etc/roadweave" || fail "a package has a key"
    units "$1"
}
