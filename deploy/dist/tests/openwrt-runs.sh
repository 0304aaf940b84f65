#!/bin/sh
# Runs a client by the scripts of OpenWrt's package, in its own namespace, and changes its
# configuration. tests/openwrt-runs.sh PROGRAM ROOT, the root of an unpacked package. Exits with 77
# and the reason where it cannot run.
set -eu
if [ -z "${inside:-}" ]; then
    unable() { echo "openwrt: not tried with a client that runs: $1" && exit 77; }
    for tool in ip nft unshare; do
        command -v $tool >/dev/null || unable "$tool is not installed"
    done
    [ "$(id -u)" = 0 ] || unable "only root can make a tunnel"
    [ -c /dev/net/tun ] || unable "there is no /dev/net/tun"
    unshare --net --mount true 2>/dev/null || unable "no namespace can be made here"
    # All processes end with this shell.
    inside=1 exec unshare --net --mount --pid --fork --kill-child "$0" "$@"
fi
PROGRAM=$1 root=$2
tests=$(mktemp -d)
trap 'umount "$tests/small" 2>/dev/null || true; rm -rf "$tests"' EXIT
fail() { echo "openwrt: $1" >&2 && cat "$tests/log" "$tests/client.log" >&2 2>/dev/null; exit 1; }
mount -t proc proc /proc
mount -t tmpfs run /run
ip link set lo up
ip link add wan0 type veth peer name far0
ip link set wan0 up && ip link set far0 up
ip address add 10.1.0.2/24 dev wan0
ip route add default via 10.1.0.1

# Like procd: starts an instance unless it runs, and leaves an equal one alone.
{ cat "$(dirname "$0")/openwrt-stubs.sh" - >"$tests/stubs.sh"; } <<'EOF'
pid() { cat "$RUNS/$1" 2>/dev/null || echo none; }
procd_running() { [ -d "/proc/$(pid "$2")" ]; }
procd_send_signal() {
	kill -"$3" "$(pid "$2")"
	[ "$3" = HUP ] || while procd_running "$1" "$2"; do sleep 0.1; done
}
procd_open_instance() { instance=$1; }
procd_set_param() {
	[ "$1" = command ] && shift && ! procd_running roadweave "$instance" || return 0
	(umask 077 && exec "$@") >>"$CLIENT_LOG" 2>&1 &
	echo $! >"$RUNS/$instance"
}
start() { start_service "$@"; }
EOF
mkdir "$tests/runs"
WRITTEN=$tests/written
run() {
    : >"$tests/log"
    CONFIG="$tests/config" LOG="$tests/log" RUNS="$tests/runs" CLIENT_LOG="$tests/client.log" \
        PROGRAM="$PROGRAM" LIBRARY="$root/usr/lib/roadweave" WRITTEN="$WRITTEN" \
        busybox sh -uc '. "$1"; . "$2"; "$3"' sh "$tests/stubs.sh" "$root/etc/init.d/roadweave" "$1" || true
}
set_option() { mkdir -p "$tests/config/$1/options" && printf '%s\n' "$3" >"$tests/config/$1/options/$2"; }
set_list() { mkdir -p "$tests/config/$1/lists" && printf '%s\n' "$3" >"$tests/config/$1/lists/$2"; }
told() { grep -q -- "$1" "$tests/log" || fail "not told: $1"; }
pid() { cat "$tests/runs/client.client"; }
# Whether traffic for the tunnel leaves in the clear.
is_open() { ip route get 203.0.113.9 2>/dev/null | grep -q 'dev wan0'; }
excluded() { ip route get 198.51.100.9 2>/dev/null | grep -q 'dev wan0'; }
# until_so COMMAND...: within 20 s.
until_so() {
    for _ in $(seq 200); do
        if "$@"; then return; fi
        sleep 0.1
    done
    fail "not so after 20 s: $*"
}
answers() { "$PROGRAM" show --socket "/run/roadweave/$1.sock" >/dev/null 2>&1; }

set_option client.client enabled 1
set_option client.client private_key_file "$tests/client.key"
set_option client.client state_directory "$tests/state"
set_list client.client uplink_include 'wan*'
set_list server.a address 192.0.2.1:4433
set_option server.a public_key "$("$PROGRAM" keygen | sed -n 's/^public_key *= *"\(.*\)"/\1/p')"
is_open || fail "there is no default route"
run start
until_so answers rw0
! is_open || fail "traffic leaves in the clear before the first session"
! excluded || fail "it is excluded without being configured"
first=$(pid)

# Applied while it runs.
set_list client.client exclude 198.51.100.0/24
run reload_service
until_so excluded
[ "$(pid)" = "$first" ] || fail "a change that needs no restart restarted it"

# An invalid value ends nothing.
set_option client.client exclude 10.0.0.0/8
run reload_service
told 'keeps running unchanged: client: exclude is a list'
rm "$tests/config/client.client/options/exclude"
kill -0 "$first" || fail "a wrong value ended it"
[ "$(pid)" = "$first" ] || fail "a wrong value restarted it"

# A field that needs a restart restarts it, and traffic stays blocked meanwhile.
(while sleep 0.01; do ! is_open || echo "in the clear"; done >"$tests/seen") &
watcher=$!
set_option client.client mtu_bytes 1290
run reload_service
told 'restarts for tun.mtu_bytes'
[ "$(pid)" != "$first" ] || fail "a field that needs a restart is ignored"
until_so answers rw0
until_so excluded
second=$(pid)
run restart
told 'restarts for the restart command'
[ "$(pid)" != "$second" ] || fail "a restart restarts nothing"
until_so answers rw0
until_so excluded
kill $watcher
[ ! -s "$tests/seen" ] || fail "traffic for the tunnel leaves in the clear during a restart"
ip link show rw0 | grep -q 'mtu 1290' || fail "it restarted with the old file"

# Under another name nothing of the old one is left.
set_option client.client tun_name rw1
run reload_service
told 'as rw1 in place of rw0'
until_so answers rw1
! is_open || fail "under another name it is open"
! ip link show rw0 2>/dev/null || fail "the old name is left"
kill "$(pid)"
until_so is_open

# A file that a full disk cut short is not used, though it is valid.
mkdir "$tests/small" && mount -t tmpfs -o size=4k small "$tests/small"
WRITTEN=$tests/small
set_list client.client exclude "$(seq -f '198.51.100.%g/32' 255)"
run start 2>/dev/null
told 'not started: cannot write'
[ ! -e "$tests/small/client.client.toml" ] || fail "half a file is used"
echo "a running client applies changes"
