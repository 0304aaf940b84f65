#!/bin/sh
# deb, in a root of Debian: installed by apt, over itself as an upgrade, removed.
. "$(dirname "$0")/lib.sh"
needs_root
arch=$(dpkg --print-architecture)
package "roadweave_$version-1_$arch.deb"
debian "$ROOT/debian"
install "$ROOT/debian" "roadweave_$version-1_$arch.deb"
in_debian() { chroot "$ROOT/debian" "$@"; }
in_debian nft --version >/dev/null || fail "nftables did not come along"
installed "$ROOT/debian"
if [ -f "$PACKAGES/roadweave-admin_$version-1_$arch.deb" ]; then
    install "$ROOT/debian" "roadweave-admin_$version-1_$arch.deb"
    in_debian roadweave completions zsh | grep -q '#compdef roadweave' || fail "no completions"
    in_debian roadweave peer --help >/dev/null
    in_debian dpkg --purge roadweave-admin >/dev/null
else
    echo "deb: roadweave-admin is not packaged, and not tried"
fi
if [ -f "$PACKAGES/roadweave-web_$version-1_$arch.deb" ]; then
    install "$ROOT/debian" "roadweave-web_$version-1_$arch.deb"
    in_debian roadweave web --help | grep -q -- --token-file || fail "no page"
    unit "$ROOT/debian" roadweave-web@rw0
    in_debian dpkg --purge roadweave-web >/dev/null
else
    echo "deb: roadweave-web is not packaged, and not tried"
fi
in_debian roadweave init --server vpn.example:4433 /etc/roadweave >/dev/null
in_debian roadweave client --check --config /etc/roadweave/client.toml >/dev/null
[ "$(in_debian stat -c %U:%G:%a /etc/roadweave/client.toml)" = root:roadweave:640 ] ||
    fail "the services cannot read the files of init"
mkdir -p "$ROOT/debian/var/lib/roadweave"
echo "# mine" >>"$ROOT/debian/etc/roadweave/client.toml.example"
# As an older package left it, whose services ran as root.
in_debian chgrp -R root /etc/roadweave && in_debian chmod -R g=,o= /etc/roadweave
install "$ROOT/debian" "roadweave_$version-1_$arch.deb"
[ "$(in_debian stat -c %U:%G:%a /etc/roadweave/server.toml)" = root:roadweave:640 ] ||
    fail "the services cannot read their files after an upgrade"
grep -q '^# mine' "$ROOT/debian/etc/roadweave/client.toml.example" ||
    fail "an upgrade lost an edited file"
in_debian dpkg --purge roadweave >/dev/null 2>&1
# Edited files stay.
left=$(cd "$ROOT/debian" && find etc usr var/lib/roadweave -path '*roadweave*' 2>/dev/null |
    sort | tr '\n' ' ')
[ "$left" = "etc/roadweave etc/roadweave/client.toml etc/roadweave/server.toml " ] ||
    fail "purge left: $left"
