#!/bin/sh
# The scripts of OpenWrt's package under busybox, with stubs for what OpenWrt has: uci, procd and
# logger. tests/openwrt-scripts.sh PROGRAM ROOT, the root of an unpacked package.
set -eu
real=$1 root=$2
tests=$(mktemp -d)
trap 'rm -rf "$tests"' EXIT
fail() { echo "openwrt: $1" >&2 && cat "$tests/log" >&2 2>/dev/null; exit 1; }

{ cat "$(dirname "$0")/openwrt-stubs.sh" - >"$tests/stubs.sh"; } <<'EOF'
# What is asked of procd meanwhile takes the place of the message that is being written. An instance
# runs if it has a file in $RUNS.
procd_open_instance() { echo "instance $*" >>"$LOG"; }
procd_set_param() { echo "param $*" >>"$LOG"; }
procd_running() { lost=1 && [ "$1" = roadweave ] && [ -e "$RUNS/$2" ]; }
procd_send_signal() { lost=1 && echo "signal $*" >>"$LOG"; }
stop() { echo stop >>"$LOG"; }
start() {
	lost=""
	start_service "$@"
	[ -z "$lost" ] || echo "the message to procd is lost" >>"$LOG"
}
EOF
# The program, but for `reload`: that has its answer and its code from files; and `show`, whose code
# is another.
cat >"$tests/roadweave" <<'EOF'
#!/bin/sh
[ "$1" != show ] || exit "$(cat "$RUNS/shows")"
[ "$1" = reload ] || exec "$REAL" "$@"
echo "$*" >>"$LOG"
cat "$RUNS/answer"
exit "$(cat "$RUNS/code")"
EOF
chmod 755 "$tests/roadweave"
mkdir "$tests/runs"
echo 0 >"$tests/runs/shows"
# run [start|reload_service|restart]: runs that of the init script on the sections of $tests/config.
run() {
    : >"$tests/log"
    REAL="$real" CONFIG="$tests/config" LOG="$tests/log" RUNS="$tests/runs" \
        PROGRAM="$tests/roadweave" LIBRARY="$root/usr/lib/roadweave" WRITTEN="$tests/written" \
        SOCKETS=/run/of busybox sh -euc '. "$1"; . "$2"; set +e; "$3"; echo "code $?" >>"$LOG"; service_triggers' \
        sh "$tests/stubs.sh" "$root/etc/init.d/roadweave" "${1:-start}" || true
    ! grep -q 'message to procd is lost' "$tests/log" || fail "procd is asked while it is told"
}
# as procd_running has it, what was started runs by what it was told.
run_on() { : >"$tests/runs/client.client"; }
answers() { echo "$1" >"$tests/runs/code" && printf '%s\n' "$2" >"$tests/runs/answer"; }
set_option() { mkdir -p "$tests/config/$1/options" && printf '%s\n' "$3" >"$tests/config/$1/options/$2"; }
set_list() { mkdir -p "$tests/config/$1/lists" && printf '%s\n' "$3" >"$tests/config/$1/lists/$2"; }
told() { grep -q -- "$1" "$tests/log" || fail "not told: $1"; }
untold() { ! grep -q -- "$1" "$tests/log" || fail "told: $1"; }
written=$tests/written/client.client.toml
writes() { grep -qF -- "$1" "$written" || fail "$1 is lost"; }

busybox sh -n "$root/etc/init.d/roadweave" || fail "the init script cannot be read"
# As installed: nothing is started, and nothing is wrong.
set_option client.client enabled 0
run
untold '^instance'
untold '^log'

set_option client.client enabled 1
set_option client.client name 'bus "12" \ $(touch '"$tests"'/run)'
set_option client.client private_key_file "$tests/keys/client.key"
set_list client.client uplink_include 'wwan*
eth1'
set_list client.client uplink_exclude eth2
set_list client.client into_tunnel 10.0.0.0/8
set_list client.client exclude 203.0.113.0/24
set_list client.client dns 10.77.0.1
set_option client.client kill_switch 1
set_option client.client tun_name rw7
set_option client.client state_directory "$tests/state"
set_list server.a address 'vpn.example:4433
[2001:db8::1]:4433'
set_option server.a public_key "$("$real" keygen | sed -n 's/^public_key *= *"\(.*\)"/\1/p')"
set_option policy.a name 'wwan1'
set_option policy.a iccid 8949020000012345678
set_option policy.a priority backup
set_option policy.a monthly_cap_mb 50000
set_option policy.a daily_cap_mb 2000
set_option policy.a rate_limit_kbps 8000
set_option policy.a billing_day 15
run
told '^instance client.client$'
told "^param command $tests/roadweave client --config $written\$"
told '^param term_timeout 15$'
# procd would stop an instance whose file changed.
untold '^param file'
told '^trigger roadweave$'
told 'public key: "'
[ "$(stat -c %a "$tests/keys/client.key" "$written" | sort -u)" = 600 ] ||
    fail "other users can read the key"
grep -q 'log.*'"$(cat "$tests/keys/client.key")" "$tests/log" && fail "the private key is in the log"
[ ! -e "$tests/run" ] || fail "a value was run"
writes 'name = "bus \"12\" \\ $(touch'
for line in 'iccid = "8949020000012345678"' 'metered.daily_cap_mb = 2000' 'rate_limit_kbps = 8000' \
    'metered.billing_day = 15' 'uplinks.include = ["wwan*", "eth1"]' 'uplinks.exclude = ["eth2"]' \
    'routes.into_tunnel = ["10.0.0.0/8"]' 'routes.exclude = ["203.0.113.0/24"]' 'dns = ["10.77.0.1"]' \
    'routes.kill_switch = true' 'addresses = ["vpn.example:4433", "[2001:db8::1]:4433"]'; do
    grep -qxF -- "$line" "$written" || fail "$line is lost"
done
# Interfaces behind the box come from the firewall, unless they are named.
! grep -q '^uplinks.inside' "$written" || fail "inside is named, and no firewall is there"
mkdir -p "$tests/uci"
set_uci() { printf '%s\n' "$2" >"$tests/uci/$1"; }
set_uci 'firewall.@zone[0].name' lan
set_uci 'firewall.@zone[0].network' 'lan guest'
set_uci 'firewall.@zone[1].name' wan
set_uci 'firewall.@zone[1].network' 'wan wan6'
set_uci 'firewall.@zone[2].name' hotspot
set_uci 'firewall.@zone[2].network' wwan
set_uci 'firewall.@zone[2].masq' 1
set_uci 'firewall.@zone[3].name' cameras
set_uci 'firewall.@zone[3].network' cameras
for pair in lan:br-lan wan:eth1 wan6:@wan wwan:wlan0 cameras:eth0.7; do
    set_uci "network.${pair%:*}.device" "${pair#*:}"
done
run
writes 'uplinks.inside = ["br-lan", "eth0.7"]'
set_list client.client uplink_inside 'br-lan'
set_option client.client uplink_local gateway
set_option client.client packet_marks 0x00ff0000
run
writes 'uplinks.inside = ["br-lan"]'
writes 'uplinks.local = "gateway"'
writes 'packet_marks = "0x00ff0000"'
rm -r "$tests/uci" "$tests/config/client.client/lists/uplink_inside"
rm "$tests/config/client.client/options/uplink_local" \
    "$tests/config/client.client/options/packet_marks"
run
# The key stays, and the file is equal.
before=$(sha256sum "$tests/keys/client.key" "$written")
parameters=$(grep '^param' "$tests/log")
run
[ "$before" = "$(sha256sum "$tests/keys/client.key" "$written")" ] ||
    fail "another key or file at the second start"

# A running instance applies a change; the message to procd is the same as before.
run_on
answers 0 'the configuration was read again'
for action in reload_service start; do
    set_list client.client exclude "198.51.100.${#action}/32"
    run "$action"
    writes "routes.exclude = [\"198.51.100.${#action}/32\"]"
    told '^reload --socket /run/of/rw7.sock$'
    told '^code 0$'
    untold '^signal'
    [ "$parameters" = "$(grep '^param' "$tests/log")" ] || fail "$action: other parameters"
done
# A field that needs a restart: the instance ends, and traffic stays blocked.
answers 0 'the configuration was read again
not before the next start: tun.mtu_bytes'
run reload_service
told 'log .*client.client: restarts for tun.mtu_bytes; .* is blocked'
told '^signal roadweave client.client USR1$'
told '^instance client.client$'
# A refusal by the program is logged, and ends no instance.
answers 2 'roadweave: nothing was changed: unknown field'
run reload_service
told 'log .*client.client: keeps running unchanged: .*unknown field'
untold '^signal'
# The instance is starting, or hangs.
answers 1 'roadweave: nobody listens'
run reload_service
told '^signal roadweave client.client HUP$'
told 'log .*nobody listens'
# Another name: what the old name blocks would stay blocked for good.
answers 0 'the configuration was read again
not before the next start: tun.name'
set_option client.client tun_name rw8
run reload_service
told '^reload --socket /run/of/rw7.sock$'
told 'log .*as rw8 in place of rw7; .*in the clear'
told '^signal roadweave client.client TERM$'
answers 0 'the configuration was read again'
run reload_service
told '^reload --socket /run/of/rw8.sock$'
untold '^signal'

# An invalid configuration neither ends nor changes a running instance.
before=$(sha256sum "$written")
set_option client.client mtu_bytes many
for action in reload_service start restart; do
    run "$action"
    told 'log .*client.client: keeps running unchanged: .*not a number'
    untold '^reload'
    untold '^signal'
    untold '^stop$'
    [ "$parameters" = "$(grep '^param' "$tests/log")" ] || fail "$action: other parameters"
    [ "$before" = "$(sha256sum "$written")" ] || fail "$action: another file"
done
run reload_service
told '^code 1$'
rm "$tests/config/client.client/options/mtu_bytes"
mv "$tests/config" "$tests/away"
run reload_service
told 'log .*client.client: keeps running unchanged: '
[ "$parameters" = "$(grep '^param' "$tests/log")" ] || fail "no configuration: other parameters"
mv "$tests/away" "$tests/config"
set_option client.client enabled 0
run reload_service
untold '^instance'
set_option client.client enabled 1
# A restart keeps traffic blocked; an instance that does not answer is killed.
for signal in USR1 KILL; do
    run restart
    told "^signal roadweave client.client $signal\$"
    told 'log .*client.client: restarts for the restart command; .* is blocked'
    told '^instance client.client$'
    untold '^stop$'
    untold '^reload'
    [ "$parameters" = "$(grep '^param' "$tests/log")" ] || fail "restart: other parameters"
    echo 1 >"$tests/runs/shows"
done
echo 0 >"$tests/runs/shows"
rm "$tests/runs/client.client"

# refused SECTION option|list NAME VALUE WHAT_IS_TOLD
refused() {
    kept=$(cat "$tests/config/$1/$2s/$3" 2>/dev/null) || true
    "set_$2" "$1" "$3" "$4"
    run
    untold '^instance'
    told "client.client: not started: .*$5"
    rm "$tests/config/$1/$2s/$3"
    [ -z "$kept" ] || "set_$2" "$1" "$3" "$kept"
}
# The first error is logged, and no file with the key is left.
refused client.client option tun_name "$(printf 'rw0\001')" 'control character'
[ ! -e "$written.new" ] || fail "a file with the key is left"
set_option client.client masquerade perhaps
refused client.client option exclude 10.0.0.0/8 'client: exclude is a list'
rm "$tests/config/client.client/options/masquerade"
refused client.client option mtu_bytes '1300
x = 1' 'not a number'
refused client.client option kill_switch maybe 'neither'
refused client.client option before_join sometimes 'client.client.toml'
refused client.client option uplink_exlude eth2 'no option or list is called uplink_exlude; there are .*uplink_exclude'
refused client.client list uplink_exlude eth2 'no option or list is called uplink_exlude; there are .*uplink_exclude'
# Of the other kind.
for list in uplink_include uplink_exclude uplink_inside into_tunnel exclude dns; do
    refused client.client option $list 10.0.0.0/8 "client: $list is a list: write .list $list '10.0.0.0/8'."
done
refused server.b option address 198.51.100.1:4433 'server: address is a list: write .list address'
for option in name kill_switch before_join enabled; do
    refused client.client list $option 1 "client: $option is not a list: write .option $option '1'."
done
refused policy.a list rate_limit_kbps 8000 'policy: rate_limit_kbps is not a list'
refused server.b option public_key x 'public_key needs .list address'
# Empty.
for option in kill_switch tun_name config enabled; do
    refused client.client option $option '' "client: $option is empty"
done
refused client.client list exclude '10.0.0.0/8

10.1.0.0/16' 'client: an item of exclude is empty'
# Neither a yes nor a no.
refused client.client option enabled ture "enabled: 'ture' is neither 0 nor 1"
# A misspelled `enabled`.
mv "$tests/config/client.client/options/enabled" "$tests/enabled"
refused client.client option enable 1 'no option or list is called enable;'
mv "$tests/enabled" "$tests/config/client.client/options/enabled"
# Fields that only a file in TOML has.
for name in lanes streams transport accept order insurance; do
    refused client.client option $name x "no option or list is called $name; .*option config FILE"
done
set_option lanes.a name x
run
untold '^instance'
told 'not started: no section is called lanes; there are client, server and policy; .*option config FILE'
rm -r "$tests/config/lanes.a"
run
told '^instance client.client$'
printf 'AAAA"\nlisten = 1\n' >"$tests/keys/client.key"
run
told 'not a private key'

# An empty key file is not replaced.
: >"$tests/keys/client.key"
run
told 'not started: no key in'

# A file in TOML instead.
set_option client.client config "$tests/own.toml"
run
told 'not started: .*own.toml'
printf '%s\n' 'private_key = "'"$("$real" keygen | sed -n 's/^private_key *= *"\(.*\)"/\1/p')"'"' \
    '[server]' 'addresses = ["192.0.2.1:4433"]' \
    "public_key = \"$(cat "$tests/config/server.a/options/public_key")\"" \
    '[tun] # of its own' "name = 'own0'" 'mtu_bytes = 1300' >"$tests/own.toml"
chmod 600 "$tests/own.toml"
# Another file than that of the running instance.
run_on
run reload_service
told '^signal roadweave client.client TERM$'
told "^param command $tests/roadweave client --config $tests/own.toml\$"
run reload_service
told '^reload --socket /run/of/own0.sock$'
untold '^signal'
rm "$tests/own.toml"
run reload_service
told 'keeps running unchanged: .*own.toml'
told "^param command $tests/roadweave client --config $tests/own.toml\$"
echo "the scripts of OpenWrt are in order"
