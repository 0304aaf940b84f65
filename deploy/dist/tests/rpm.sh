#!/bin/sh
# rpm, in an empty root; scripts need a shell, which is busybox's.
. "$(dirname "$0")/lib.sh"
needs_root
needs rpm busybox
rpm=roadweave-$version-1.$(uname -m).rpm
package "$rpm"
root=$ROOT/rpm
mkdir -p "$root/bin" "$root/etc"
busybox=$(command -v busybox)
for library in $(ldd "$busybox" 2>/dev/null | sed -n 's|^[^/]*\(/[^ ]*\).*|\1|p'); do
    mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
done
cp "$busybox" "$root/bin/busybox"
for name in sh chmod; do ln -s busybox "$root/bin/$name"; done
rpm --root "$root" --initdb
rpm --root "$root" --install --nodeps --nosignature "$PACKAGES/$rpm"
rpm --root "$root" --query --requires roadweave | grep -q '^nftables' || fail "it does not want nftables"
installed "$root"
rpm --root "$root" --verify --nodeps roadweave || fail "files are not as packaged"
echo key >"$root/etc/roadweave/client.toml"
rpm --root "$root" --upgrade --replacepkgs --nodeps --nosignature "$PACKAGES/$rpm"
rpm --root "$root" --erase --nodeps roadweave
left=$(cd "$root" && find etc/roadweave usr -type f 2>/dev/null | grep roadweave | tr '\n' ' ')
[ "$left" = "etc/roadweave/client.toml " ] || fail "it left: $left"
