#!/bin/sh
# Runs the images of deploy/images.sh with podman like the chart does, with read-only root file
# systems, and proxies and the controller without capabilities: a proxy that is drained and stopped,
# and an anchor that joins a controller with a token from a file.
#
#   deploy/images-test.sh [NAME [TAG]]     as deploy/images.sh
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name="${1:-localhost/roadweave}"
tag="${2:-$version}"
export STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"
folder=$(mktemp -d)
space="roadweave-images-$$"
# Containers must not need higher limits than the machine has; crun does not run everywhere.
cat >"$folder/containers.conf" <<EOF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
EOF
export CONTAINERS_CONF="$folder/containers.conf"

end() {
    for name in "$space" "$space-controller" "$space-anchor"; do
        podman rm --force "$name" >/dev/null 2>&1 || true
    done
    ip netns delete "$space" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT
ip netns add "$space"
ip -n "$space" link set lo up

# run IMAGE-SUFFIX OPTION... -- ARGUMENT...
run() {
    image="$name$1:$tag"
    shift
    options=""
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    # shellcheck disable=SC2086  # options without spaces
    podman run --network "ns:/run/netns/$space" --read-only \
        --tmpfs /run:mode=1777 --tmpfs /var/lib:mode=1777 ${rights:-$no_rights} $options \
        "$image" "$@"
}
no_rights="--cap-drop all --security-opt no-new-privileges"
key() { run "" --rm -- keygen | sed -n "s/^$1 *= *\"\(.*\)\"/\1/p"; }
answer() { ip netns exec "$space" curl --silent "http://127.0.0.1:${2:-9474}/$1"; }
# api METHOD PATH [BODY]
api() {
    ip netns exec "$space" curl --silent --insecure --max-time 20 --request "$1" \
        --cookie "$folder/cookies" --cookie-jar "$folder/cookies" \
        --header "content-type: application/json" ${3:+--data "$3"} "https://127.0.0.1:4400$2"
}
# Waits until a command prints the expected text, or fails and prints its last output.
await() {
    expected="$1"
    shift
    tries=0
    while said=$("$@" || true) && [ "$said" != "$expected" ] && [ "$tries" -lt 120 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    expect "$*" "$said" "$expected"
}
expect() {
    [ "$2" = "$3" ] || {
        echo "$1: $2, not $3" >&2
        for name in "$space" "$space-controller" "$space-anchor"; do
            podman logs "$name" >&2 || true
        done
        exit 1
    }
}

for suffix in "" -anchor -controller; do
    said=$(run "$suffix" --rm -- --version)
    echo "$name$suffix:$tag is $said"
done
mkdir "$folder/proxy"
cat >"$folder/proxy/proxy.toml" <<EOF
metrics = { listen = "127.0.0.1:9474" }
private_key = "$(key private_key)"
[[tenants]]
name = "home"
anchor = { public_key = "$(key public_key)", addresses = ["127.0.0.1:4434"] }
EOF
chmod 600 "$folder/proxy/proxy.toml"
chown -R 65532:65532 "$folder/proxy"
run "" --detach --name="$space" --volume="$folder/proxy:/etc/roadweave:ro" -- proxy >/dev/null
await ok answer healthz
await "no anchor answers" answer readyz
podman exec "$space" /roadweave drain --socket /run/roadweave/proxy.sock
await "draining: no new clients are accepted" answer readyz
expect "it lives" "$(answer healthz)" ok
podman stop --time 5 "$space" >/dev/null
expect "it ends in order" "$(podman inspect --format '{{.State.ExitCode}}' "$space")" 0

# A controller; the second init changes only its addresses.
mkdir "$folder/controller"
chown 65532:65532 "$folder/controller"
kept="--volume=$folder/controller:/var/lib/roadweave-controller"
run -controller --rm "$kept" -- init --keep --address fleet.example.org:4400 >"$folder/said"
password=$(sed -n 's/^ *password: //p' "$folder/said")
run -controller --rm "$kept" -- init --keep --address 127.0.0.1:4400
run -controller --detach --name="$space-controller" "$kept" -- run >/dev/null
await alive api GET /healthz
await ready api GET /readyz
who="{\"tenant\":\"home\",\"user\":\"admin\",\"password\":\"$password\"}"
api POST /api/v1/sessions "$who" >/dev/null
podman exec "$space-controller" /roadweave-controller backup - 2>/dev/null | tail -n 1 |
    grep --quiet hmac

# An anchor; a privileged pod creates its filters, forwarding and device.
api POST /api/v1/tenants/home/tokens '{"settings":{"role":"anchor"}}' |
    sed -n 's/.*"join":"\(rw1_[^"]*\)".*/\1/p' >"$folder/token"
chmod 400 "$folder/token"
mkdir "$folder/state" "$folder/anchor"
cat >"$folder/anchor/anchor.toml" <<EOF
listen = "127.0.0.1:4434"
metrics = { listen = "127.0.0.1:9475" }
tenant = "home"
addresses = ["10.77.0.1/16", "fd77::1/64"]
EOF
chmod 440 "$folder/anchor/anchor.toml"
state="--volume=$folder/state:/var/lib/roadweave"
run -anchor --rm "$state" --volume="$folder/token:/etc/roadweave-token/token:ro" -- \
    join --token-file=/etc/roadweave-token/token --role=anchor --name=anchor-home \
    --address=127.0.0.1:4434
rights=--privileged
run -anchor --detach --name="$space-anchor" "$state" \
    --volume="$folder/anchor:/etc/roadweave:ro" -- anchor >/dev/null
await ok answer healthz 9475
await ok answer readyz 9475
connected() {
    api GET /api/v1/tenants/home/proxy-status | grep --only-matching '"connected":[a-z]*'
}
await '"connected":true' connected
podman exec "$space-anchor" /usr/sbin/nft list tables | grep --quiet roadweave
podman stop --time 20 "$space-anchor" >/dev/null
expect "an anchor ends in order" \
    "$(podman inspect --format '{{.State.ExitCode}}' "$space-anchor")" 0
podman stop --time 20 "$space-controller" >/dev/null
expect "a controller ends in order" \
    "$(podman inspect --format '{{.State.ExitCode}}' "$space-controller")" 0
echo "the images are in order"
