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
for name in sh chmod chgrp id stat find; do ln -s busybox "$root/bin/$name"; done
echo root:x:0:0::/:/bin/sh >"$root/etc/passwd" && echo root:x:0: >"$root/etc/group"
# busybox has adduser, with other options.
printf '%s\n' '#!/bin/sh' 'echo roadweave:x:990:990::/:/bin/false >>/etc/passwd' \
    'echo roadweave:x:990: >>/etc/group' >"$root/bin/useradd" && chmod 755 "$root/bin/useradd"
rpm --root "$root" --initdb
rpm --root "$root" --install --nodeps --nosignature "$PACKAGES/$rpm"
rpm --root "$root" --query --requires roadweave | grep -q '^nftables' || fail "it does not want nftables"
installed "$root"
rpm --root "$root" --verify --nodeps roadweave || fail "files are not as packaged"
echo key >"$root/etc/roadweave/client.toml"
# As an older package left it, whose services ran as root.
chgrp -R 0 "$root/etc/roadweave" && chmod -R g=,o= "$root/etc/roadweave"
rpm --root "$root" --upgrade --replacepkgs --nodeps --nosignature "$PACKAGES/$rpm"
[ "$(stat -c %u:%g:%a "$root/etc/roadweave/client.toml")" = 0:990:640 ] ||
    fail "the services cannot read their files after an upgrade"
rpm --root "$root" --erase --nodeps roadweave
left=$(cd "$root" && find etc/roadweave usr -type f 2>/dev/null | grep roadweave | tr '\n' ' ')
[ "$left" = "etc/roadweave/client.toml " ] || fail "it left: $left"
