#!/bin/sh
# Checks the chart by helm's lint, the schema of its values, and the schemas of Kubernetes, and the
# files of proxies and anchors in it by `roadweave proxy --check` and `roadweave anchor --check`,
# where that program is built. Installs helm and kubernetes-validate into target/tools.
#
#   deploy/helm/check.sh [--if-possible]     skips where they cannot be had; with
#                                            ROADWEAVE_REQUIRE_TOOLS only where go is not there
set -eu
cd "$(dirname "$0")/../.."
tools="${CARGO_TARGET_DIR:-$PWD/target}/tools"
chart=deploy/helm/roadweave
tests=deploy/helm/tests
kubernetes=1.34.0

if_possible="${1:-}"
skip() {
    [ "$if_possible" != --if-possible ] || {
        echo "skipped: the chart is not checked, $1" >&2
        exit 0
    }
    cannot "$1"
}
# Without the tools that this script installs.
missing() {
    [ -n "${ROADWEAVE_REQUIRE_TOOLS:-}" ] || skip "$1"
    cannot "$1"
}
cannot() {
    echo "the chart cannot be checked: $1" >&2
    exit 1
}

helm="$tools/bin/helm"
if [ ! -x "$helm" ]; then
    command -v go >/dev/null || skip "go is not installed, which builds helm"
    GOBIN="$tools/bin" go install helm.sh/helm/v3/cmd/helm@v3.22.0 >/dev/null 2>&1 ||
        missing "helm cannot be built"
fi
validate="$tools/kubernetes-validate/bin/kubernetes-validate"
if [ ! -x "$validate" ]; then
    python3 -m venv "$tools/kubernetes-validate" &&
        "$tools/kubernetes-validate/bin/pip" install --quiet kubernetes-validate==1.37.0 ||
        missing "kubernetes-validate cannot be installed"
fi

roadweave=
for built in "${CARGO_TARGET_DIR:-$PWD/target}"/release/roadweave \
    "${CARGO_TARGET_DIR:-$PWD/target}"/debug/roadweave; do
    [ -z "$roadweave" ] && [ -x "$built" ] && roadweave=$built
done
[ -n "$roadweave" ] || echo "not checked: the files in the chart, roadweave is not built" >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rendered="$scratch/rendered.yaml"
# Keys are created by the join, as in this folder.
mkdir "$scratch/joined"
touch "$scratch/joined/fleet.0"

# The files in the ConfigMaps are files of proxies or anchors; each gets its own folder.
check_files() {
    rm -rf "$scratch/files"
    "${validate%/*}/python3" - "$rendered" "$scratch/files" <<'PYTHON'
import pathlib, sys, yaml
for document in yaml.safe_load_all(open(sys.argv[1])):
    if document and document["kind"] == "ConfigMap":
        for name, text in document["data"].items():
            path = pathlib.Path(sys.argv[2], document["metadata"]["name"], name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o440)  # as in the pods
PYTHON
    for file in "$scratch"/files/*/*; do
        [ -e "$file" ] || continue
        role=$(basename "$file" .toml)
        "$roadweave" "$role" --check --config "$file" --state-directory "$scratch/joined" \
            >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; return 1; }
    done
}

# Commands contain no secrets, since all programs of a node can see them; every pod has a port to
# scrape, where there is a PodMonitor.
check_pods() {
    "${validate%/*}/python3" - "$rendered" <<'PYTHON'
import sys, yaml
parts = [part for part in yaml.safe_load_all(open(sys.argv[1])) if part]
pods = {part["metadata"]["name"]: part["spec"]["template"]["spec"] for part in parts
        if part["kind"] in ("Deployment", "StatefulSet", "Job")}
scraped = {end["port"] for part in parts if part["kind"] == "PodMonitor"
           for end in part["spec"]["podMetricsEndpoints"]}
for name, pod in pods.items():
    every = pod.get("initContainers", []) + pod["containers"]
    for one in every:
        secret = {env["name"] for env in one.get("env", [])
                  if "secretKeyRef" in env.get("valueFrom", {})}
        for word in one.get("args", []) + one.get("command", []):
            if any(f"$({env})" in word for env in secret):
                sys.exit(f"{name}: a secret is a word of the command of {one['name']}: {word}")
        volumes = {volume["name"] for volume in pod.get("volumes", []) if "secret" in volume}
        read = {mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] in volumes}
        files = {word.split("=")[1].rsplit("/", 1)[0] for word in one.get("args", [])
                 if word.startswith("--token-file=")}
        if one["name"] == "join" and (not files or files - read):
            sys.exit(f"{name}: no token is where {one['name']} reads it: {files or 'nowhere'}")
    ports = {port["name"] for one in every for port in one.get("ports", [])}
    if scraped and not scraped & ports:
        sys.exit(f"{name}: nothing is scraped, of its ports {sorted(ports)}")
PYTHON
}

for values in "$tests"/*.yaml; do
    echo "$values"
    "$helm" lint --quiet --strict --kube-version "$kubernetes" --values "$values" "$chart"
    "$helm" template fleet "$chart" --kube-version "$kubernetes" --values "$values" >"$rendered"
    "$validate" --quiet --strict --kubernetes-version "${kubernetes%.*}" "$rendered"
    check_pods
    [ -z "$roadweave" ] || check_files
done
# The pod of docs/install.md.
"$validate" --quiet --strict --kubernetes-version "${kubernetes%.*}" deploy/helm/restore.yaml
# An invalid file is found.
if [ -n "$roadweave" ]; then
    "$helm" template fleet "$chart" --kube-version "$kubernetes" --values "$tests/small.yaml" \
        --set-json 'proxies.config="memory_mb = 64"' >"$rendered"
    if check_files 2>"$scratch/said"; then
        echo "a file with an unknown field is accepted; it should be refused" >&2
        exit 1
    fi
fi

# Wrong values are refused, and named.
refused() {
    if said=$("$helm" template fleet "$chart" --kube-version "$kubernetes" \
        --values "$tests/small.yaml" --set-json "$1" 2>&1); then
        echo "$1 is accepted; it should be refused" >&2
        exit 1
    fi
    case "$said" in
        *"$2"*) ;;
        *) echo "$1 is refused without naming $2: $said" >&2; exit 1 ;;
    esac
}
refused 'controller.addresses=[]' 'write where boxes reach it'
refused 'proxies.expose="ingress"' 'expose'
refused 'proxies.expose="service"' 'write one for each proxy'
refused 'proxies.drain.overSeconds=600' 'overSeconds'
refused 'proxies.port=0' 'port'
refused 'proxies.prot=4433' 'prot'
refused 'anchors=[{"tenant":"acme"}]' 'tokenSecret'
refused 'networkPolicy={"enabled":true}' 'metricsFrom'
echo "the chart is in order"
