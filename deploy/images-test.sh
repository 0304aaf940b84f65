#!/bin/sh
# Runs the images of deploy/images.sh with podman as the chart does, root file systems read only and
# proxies without any capability: a proxy that lives, is drained and stopped, nft, a controller.
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
# A machine may not let its containers have more than it has itself; crun is not for every one.
cat >"$folder/containers.conf" <<EOF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
EOF
export CONTAINERS_CONF="$folder/containers.conf"

end() {
    podman rm --force "$space" >/dev/null 2>&1 || true
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
        --tmpfs /run:mode=1777 --tmpfs /var/lib:mode=1777 --cap-drop all \
        --security-opt no-new-privileges $options "$image" "$@"
}
key() { run "" --rm -- keygen | sed -n "s/^$1 *= *\"\(.*\)\"/\1/p"; }
answer() { ip netns exec "$space" curl --silent "http://127.0.0.1:9474/$1"; }
expect() {
    [ "$2" = "$3" ] || {
        echo "$1: $2, not $3" >&2
        podman logs "$space" >&2 || true
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
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(answer healthz)" = ok ] && break
    sleep 0.5
done
expect "a proxy lives" "$(answer healthz)" ok
expect "it is not ready without its anchor" "$(answer readyz)" "no anchor answers"
podman exec "$space" /roadweave drain --socket /run/roadweave/proxy.sock
expect "a drained proxy is not ready" "$(answer readyz)" \
    "draining: it takes no new clients"
expect "it lives" "$(answer healthz)" ok
podman stop --time 5 "$space" >/dev/null
expect "it ends in order" "$(podman inspect --format '{{.State.ExitCode}}' "$space")" 0
run -anchor --rm --cap-add=NET_ADMIN --entrypoint=/usr/sbin/nft -- list ruleset
run -controller --rm -- init --address fleet.example.org:4400 | grep --quiet password
echo "the images are in order"
