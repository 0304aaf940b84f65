#!/bin/sh
# The scripts of OpenWrt's package under busybox, with stubs for what OpenWrt has: uci, procd and
# logger. tests/openwrt-scripts.sh PROGRAM ROOT, the root of an unpacked package.
set -eu
PROGRAM=$1 root=$2
tests=$(mktemp -d)
trap 'rm -rf "$tests"' EXIT
fail() { echo "openwrt: $1" >&2 && cat "$tests/log" >&2 2>/dev/null; exit 1; }

# Stubs: sections and options are files, a list has an item a line.
cat >"$tests/stubs.sh" <<'EOF'
config_load() {
	local section option
	for section in "$CONFIG"/*.*; do
		[ -d "$section" ] || continue
		section=${section##*/}
		config_cb "${section%.*}" "$section"
		for option in "$CONFIG/$section"/*; do
			[ ! -f "$option" ] || option_cb "${option##*/}" ""
		done
	done
	config_cb
}
config_foreach() {
	local each
	for each in "$CONFIG"/"$2".*; do
		[ ! -d "$each" ] || "$1" "${each##*/}"
	done
}
config_get() {
	local text=""
	[ ! -f "$CONFIG/$2/$3" ] || text=$(cat "$CONFIG/$2/$3"; echo .) text=${text%??}
	export -n "$1=$text"
}
config_get_bool() { config_get "$@"; }
config_list_foreach() {
	[ -f "$CONFIG/$1/$2" ] || return 0
	local item
	while IFS= read -r item; do "$3" "$item"; done <"$CONFIG/$1/$2"
}
procd_open_instance() { echo "instance $*" >>"$LOG"; }
procd_set_param() { echo "param $*" >>"$LOG"; }
procd_close_instance() { :; }
procd_add_reload_trigger() { echo "trigger $*" >>"$LOG"; }
logger() { echo "log $*" >>"$LOG"; }
start() { echo "start" >>"$LOG"; }
EOF
# start [reload_service]: runs that of the init script on the sections of $tests/config.
start() {
    : >"$tests/log"
    CONFIG="$tests/config" LOG="$tests/log" PROGRAM="$PROGRAM" LIBRARY="$root/usr/lib/roadweave" \
        WRITTEN="$tests/written" busybox sh -euc '. "$1"; . "$2"; set +e; "$3"; service_triggers' \
        sh "$tests/stubs.sh" "$root/etc/init.d/roadweave" "${1:-start_service}" || true
}
set_option() { mkdir -p "$tests/config/$1" && printf '%s\n' "$3" >"$tests/config/$1/$2"; }
told() { grep -q -- "$1" "$tests/log" || fail "not told: $1"; }

busybox sh -n "$root/etc/init.d/roadweave" || fail "the init script cannot be read"
# As installed: nothing is started.
set_option client.client enabled 0
start
! grep -q '^instance' "$tests/log" || fail "it starts what is not enabled"

set_option client.client enabled 1
set_option client.client name 'bus "12" \ $(touch '"$tests"'/run)'
set_option client.client private_key_file "$tests/keys/client.key"
set_option client.client uplink_include 'wwan*
eth1'
set_option client.client kill_switch 1
set_option client.client state_directory "$tests/state"
set_option server.a address 'vpn.example:4433
[2001:db8::1]:4433'
set_option server.a public_key "$("$PROGRAM" keygen | sed -n 's/^public_key *= *"\(.*\)"/\1/p')"
set_option policy.a name 'wwan1'
set_option policy.a iccid 8949020000012345678
set_option policy.a priority backup
set_option policy.a monthly_cap_mb 50000
set_option policy.a daily_cap_mb 2000
set_option policy.a rate_limit_kbps 8000
set_option policy.a billing_day 15
start
told '^instance client.client$'
told "^param command $PROGRAM client --config $tests/written/client.client.toml$"
told '^trigger roadweave$'
told 'public key: "'
[ "$(stat -c %a "$tests/keys/client.key" "$tests/written/client.client.toml" | sort -u)" = 600 ] ||
    fail "others may read the key"
grep -q 'log.*'"$(cat "$tests/keys/client.key")" "$tests/log" && fail "the private key is in the log"
[ ! -e "$tests/run" ] || fail "a value was run"
grep -qF 'name = "bus \"12\" \\ $(touch' "$tests/written/client.client.toml" || fail "a name is lost"
for cap in 'iccid = "8949020000012345678"' 'metered.daily_cap_mb = 2000' 'rate_limit_kbps = 8000' 'metered.billing_day = 15'; do
    grep -qxF "$cap" "$tests/written/client.client.toml" || fail "$cap is lost"
done
grep -qF 'include = ["wwan*", "eth1"]' "$tests/written/client.client.toml" || fail "uplinks are lost"
# The key stays, and the file is equal.
before=$(sha256sum "$tests/keys/client.key" "$tests/written/client.client.toml")
start
[ "$before" = "$(sha256sum "$tests/keys/client.key" "$tests/written/client.client.toml")" ] ||
    fail "another key or file at the second start"

# A right change is taken at a reload; a wrong one tells procd nothing, so that what runs goes on.
start reload_service
told '^start$'
set_option client.client mtu_bytes many
start reload_service
! grep -q '^start$' "$tests/log" || fail "a wrong value ends what runs"
told 'not a number'
rm "$tests/config/client.client/mtu_bytes"

refused() {
    set_option client.client "$1" "$2"
    start
    ! grep -q '^instance' "$tests/log" || fail "$1 $2 is not refused"
    told "not started: .*$3"
    rm "$tests/config/client.client/$1"
}
refused mtu_bytes '1300
x = 1' 'not a number'
refused tun_name "$(printf 'rw0\001')" 'control character'
refused kill_switch maybe 'neither'
set_option client.client kill_switch 1
refused before_join sometimes 'client.client.toml'
refused uplink_exlude eth2 'no option is called uplink_exlude; there are .*uplink_exclude'
set_option uplink.a name wwan1
start
told 'not started: no section is called uplink; there are client, server and policy'
rm -r "$tests/config/uplink.a"
set_option client.client private_key_file "$tests/keys/client.key"
printf 'AAAA"\nlisten = 1\n' >"$tests/keys/client.key"
start
told 'no private key'

# A key of which nothing is left is not replaced.
: >"$tests/keys/client.key"
start
told 'not started: no key in'

# A file in TOML instead.
set_option client.client config "$tests/own.toml"
start
told 'not started: .*own.toml'
echo "the scripts of OpenWrt are in order"
