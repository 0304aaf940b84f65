#!/bin/sh
# The steps of a new user: from two bare roots of Debian, a server and a vehicle's box, by packages
# to a tunnel between them, each step timed. Both are namespaces with a veth between them. systemd
# does not run in a namespace, so the units' command lines are started directly.
. "$(dirname "$0")/lib.sh"
needs_root
needs ip ping unshare
arch=$(dpkg --print-architecture)
for program in roadweave roadweave-admin; do package "${program}_$version-1_$arch.deb"; done
ip netns add "walk-$$-a" 2>/dev/null || skip "no network namespace can be made here"
server=walk-$$-a box=walk-$$-b
end() {
    for name in "$server" "$box"; do
        # shellcheck disable=SC2046  # a list of processes
        kill $(ip netns pids "$name") 2>/dev/null || true
        ip netns delete "$name" 2>/dev/null || true
    done
}
trap end EXIT
ip netns add "$box"
ip -n "$server" link add name wan type veth peer name wan netns "$box"
for side in "$server 1" "$box 2"; do
    ip -n "${side% *}" address add "198.51.100.${side#* }/24" dev wan
    ip -n "${side% *}" link set wan up && ip -n "${side% *}" link set lo up
done
ip -n "$box" route add default via 198.51.100.1

# Hundredths of a second.
now() { cut -d ' ' -f 1 /proc/uptime | tr -d .; }
# step GOAL COMMAND...: one row of the table.
step() {
    goal=$1 from=$(now)
    shift
    "$@"
    took=$(($(now) - from))
    printf '%-52s %6d.%02d s\n' "$goal" $((took / 100)) $((took % 100))
}
# inside NAMESPACE FOLDER COMMAND...
inside() {
    name=$1 folder=$2
    shift 2
    ip netns exec "$name" unshare --mount sh -euc 'folder=$1 && shift
        mount -t proc proc "$folder/proc" && mount -t sysfs sysfs "$folder/sys"
        mkdir -p "$folder/dev/net" && touch "$folder/dev/net/tun"
        mount --bind /dev/net/tun "$folder/dev/net/tun"
        exec chroot "$folder" "$@"' - "$folder" "$@"
}
in_server() { inside "$server" "$ROOT/server" "$@"; }
in_box() { inside "$box" "$ROOT/box" "$@"; }
# start NAMESPACE FOLDER UNIT INSTANCE: the command line of the unit.
start() {
    line=$(sed -n "s/%i/$4/; s/^ExecStart=//p" "$2/usr/lib/systemd/system/$3")
    mkdir -p "$2/run/roadweave" "$2/var/lib/roadweave"
    # shellcheck disable=SC2086  # a command line
    inside "$1" "$2" $line 2>"$ROOT/$4.log" &
}
has_tunnel() {
    for _ in $(seq 300); do
        if ip netns exec "$box" ping -c 1 -W 1 10.77.0.1 >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "nothing came through the tunnel: $(tail -n 3 "$ROOT"/*.log)"
}
both() { debian "$ROOT/server" && debian "$ROOT/box"; }
copy() {
    cp "$ROOT/server/etc/roadweave/client.toml" "$ROOT/box/root/"
    chroot "$ROOT/box" install -o roadweave -m 600 /root/client.toml /etc/roadweave/
}

keys() {
    in_server roadweave init --server 198.51.100.1:4433 /etc/roadweave >/dev/null
    printf '\n[speedtest]\nenabled = true\n' >>"$ROOT/server/etc/roadweave/server.toml"
}
serve() { start "$server" "$ROOT/server" roadweave-server.service server; }
tunnel() { start "$box" "$ROOT/box" roadweave-client@.service client && has_tunnel; }
seen() { in_box roadweave show >"$ROOT/show"; }
# asks PATTERN COMMAND...: on the box, whose answer has PATTERN in it. A doctor may find something.
asks() {
    pattern=$1
    shift
    in_box "$@" >"$ROOT/said" 2>&1 || [ "$2" = doctor ] || fail "$*: $(tail -n 3 "$ROOT/said")"
    grep -q "$pattern" "$ROOT/said" || fail "$*: no $pattern: $(tail -n 3 "$ROOT/said")"
}
tools() { install "$ROOT/box" "roadweave-admin_$version-1_$arch.deb"; }
doctor() { asks wan roadweave doctor /etc/roadweave/client.toml; }
paused() { asks 'wan is paused' roadweave uplink pause wan --force; }
reloaded() { asks . roadweave reload; }
resumed() { asks 'wan is resumed' roadweave uplink resume wan && has_tunnel; }
limited() { asks 'wan is changed' roadweave uplink set wan --rate-limit-kbps 8000; }
speedtest() { asks wan roadweave speedtest --seconds 1; }
qlog() {
    mkdir -p "$ROOT/box/root/qlog"
    in_box roadweave qlog --folder /root/qlog --seconds 1 || fail "qlog: exit code $?"
    grep -q tuple_assigned "$ROOT"/box/root/qlog/* || fail "qlog has no path"
}
report() { asks report roadweave report /etc/roadweave/client.toml --out /root/report; }
second() {
    in_server roadweave peer --config /etc/roadweave/server.toml add bus-2 \
        --server 198.51.100.1:4433 >"$ROOT/peer"
}

step "two bare roots of Debian, no step of the user" both
began=$(now)
step "server: apt-get install ./roadweave ./roadweave-admin" install "$ROOT/server" \
    "roadweave_$version-1_$arch.deb" "roadweave-admin_$version-1_$arch.deb"
step "server: roadweave init, [speedtest] enabled = true" keys
step "server: start roadweave-server" serve
step "box: apt-get install ./roadweave" install "$ROOT/box" "roadweave_$version-1_$arch.deb"
step "box: client.toml installed from the server" copy
step "box: start roadweave-client@client, to the first ping" tunnel
step "box: roadweave show" seen
grep -q 198.51.100.1 "$ROOT/show" || fail "show does not know the server: $(cat "$ROOT/show")"
took=$(($(now) - began))
echo "$((took / 100)) s from two bare roots to a tunnel"
step "server: roadweave peer add, while it runs" second
step "box: apt-get install ./roadweave-admin" tools
step "box: roadweave doctor" doctor
step "box: roadweave uplink pause" paused
step "box: roadweave uplink resume, to the first ping" resumed
step "box: roadweave reload" reloaded
step "box: roadweave speedtest --seconds 1" speedtest
step "box: roadweave uplink set --rate-limit-kbps" limited
step "box: roadweave qlog --seconds 1" qlog
step "box: roadweave report" report
