#!/bin/sh
# ipk and apk: unpacked, and their scripts run under busybox with stubs for what OpenWrt has, also
# with a client that runs.
. "$(dirname "$0")/lib.sh"
needs busybox
package "roadweave_$version-1_$(uname -m).ipk"
ipk=$ROOT/ipk apk=$ROOT/apk
mkdir -p "$ipk/control" "$ipk/root" "$apk"
tar -xzf "$PACKAGES/roadweave_$version-1_$(uname -m).ipk" -C "$ipk"
tar -xzf "$ipk/control.tar.gz" -C "$ipk/control"
tar -xzf "$ipk/data.tar.gz" -C "$ipk/root"
tar -xzf "$PACKAGES/roadweave-$version-r1.$(uname -m).apk" -C "$apk" 2>/dev/null
grep -q '^Architecture: all$' "$ipk/control/control" || fail "ipk: not for all"
grep -q '/etc/config/roadweave' "$ipk/control/conffiles" ||
    fail "ipk: its configuration is lost by an upgrade"
for script in "$ipk/control/preinst" "$apk/.pre-install"; do
    busybox sh "$script" || fail "${script#"$ROOT"/}: it is not for this machine"
    sed 's/for machine in .*;/for machine in vax;/' "$script" >"$ROOT/vax"
    ! busybox sh "$ROOT/vax" 2>/dev/null || fail "${script#"$ROOT"/}: it is for every machine"
done
mkdir -p "$ipk/root/etc/rc.d"
IPKG_INSTROOT="$ipk/root" busybox sh "$ipk/control/postinst"
[ -x "$ipk/root/etc/rc.d/S90roadweave" ] || fail "ipk: it does not start with the machine"
for tree in "$ipk/root" "$apk"; do
    [ "$(stat -c %a "$tree/etc/roadweave")" = 700 ] || fail "/etc/roadweave is open"
    deploy/dist/tests/openwrt-scripts.sh "$tree/usr/bin/roadweave" "$tree"
done
code=0
deploy/dist/tests/openwrt-runs.sh "$ipk/root/usr/bin/roadweave" "$ipk/root" || code=$?
case $code in
    0) ;;
    77) [ "${ROADWEAVE_REQUIRE_TOOLS:-}" != 1 ] || fail "no client ran by its scripts" ;;
    *) exit "$code" ;;
esac
