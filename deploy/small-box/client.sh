#!/bin/sh
# A client and a server in namespaces of their own, over two links, while the client sends packets
# of 1,200 bytes: what it takes of the processor and of memory.
#
#   deploy/small-box/client.sh MBIT_PER_S SECONDS SERVER_COMMAND CLIENT_COMMAND
#
# The commands are `roadweave`, or `qemu-aarch64 ... roadweave`. The last line has what was sent:
#   packets N lost N user_ms N kernel_ms N sleeps N idle_kib N loaded_kib N
set -eu
if [ "${ROADWEAVE_INSIDE:-}" != yes ]; then
    export ROADWEAVE_INSIDE=yes
    exec unshare --mount --net --pid --fork --mount-proc "$0" "$@"
fi
rate=$1 seconds=$2 server_command=$3 client_command=$4

mount -t tmpfs tmpfs /run
mkdir -p /run/small-box
cd /run/small-box
for namespace in vehicle site; do
    ip netns add $namespace
    ip -n $namespace link set lo up
done
for link in 0 1; do
    ip link add lan$link netns vehicle type veth peer name lan$link netns site
    for side in vehicle site; do
        address=198.51.$((100 + link)).$([ $side = vehicle ] && echo 1 || echo 2)/24
        ip -n $side address add "$address" dev lan$link
        ip -n $side link set lan$link up
        # Both links lead to the same address of the server.
        ip netns exec $side sysctl -q net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan$link.rp_filter=0
    done
done
ip -n vehicle route add default via 198.51.101.2 dev lan1
ip -n vehicle route add default via 198.51.100.2 dev lan0 metric 5

# shellcheck disable=SC2086  # commands with arguments, here and below
$server_command init --server 198.51.100.2:4433 >/dev/null 2>&1
sed -i 's/^include = .*/include = ["lan0", "lan1"]/; s|^into_tunnel = .*|into_tunnel = ["10.77.0.0/16"]\nmasquerade = false|' client.toml
sed -i '/^\[\[peers\]\]/i masquerade = false\nallow_destinations = ["10.77.0.1"]\n[tun]\nname = "rw1"\n' server.toml

ip netns exec site $server_command server --config server.toml >server.log 2>&1 &
server=$!
ip netns exec vehicle $client_command client --config client.toml >client.log 2>&1 &
client=$!
trap 'kill $server $client 2>/dev/null; wait' EXIT
tries=0
until ip netns exec vehicle ping -q -c 1 -W 1 10.77.0.1 >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || { echo "no tunnel comes up:" >&2; cat server.log client.log >&2; exit 1; }
    sleep 0.5
done
sleep 2

resident() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$client/status; }
# In clock ticks of 10 ms.
cpu() { sed 's/.*) //' /proc/$client/stat | cut -d ' ' -f "$1"; }
sleeps() { cat /proc/$client/task/*/status | awk '/^voluntary/ { n += $2 } END { print n }'; }
idle=$(resident) user=$(cpu 12) kernel=$(cpu 13) slept=$(sleeps)
# It counts instructions, where the machine can.
tally=
if command -v tally >/dev/null; then tally $client /run/tally & tally=$!; fi
if [ "$rate" != 0 ]; then
    ip netns exec site iperf3 --server --one-off --daemon --pidfile /run/small-box/iperf.pid
    sleep 0.5
    ip netns exec vehicle iperf3 --client 10.77.0.1 --udp --length 1172 --bandwidth "${rate}M" \
        --time "$seconds" --json >iperf.json || { cat iperf.json client.log >&2; exit 1; }
    sent=$(sed -n '/"sum"/,$ s/.*"packets":[^0-9]*\([0-9]*\).*/\1/p' iperf.json | tail -1)
    lost=$(sed -n '/"sum"/,$ s/.*"lost_packets":[^0-9]*\([0-9]*\).*/\1/p' iperf.json | tail -1)
else
    sleep "$seconds"
    sent=0 lost=0
fi
if [ -n "$tally" ]; then kill $tally && wait $tally; cat /run/tally; fi
echo "packets $sent lost $lost user_ms $((($(cpu 12) - user) * 10)) kernel_ms $((($(cpu 13) - kernel) * 10))" \
    "sleeps $(($(sleeps) - slept)) idle_kib $idle loaded_kib $(resident)"
