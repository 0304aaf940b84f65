#!/bin/sh
# Holds the chart against helm's lint, the schema of its values, and the schemas of Kubernetes, and
# the files of proxies and anchors in it against `roadweave proxy --check` and `roadweave anchor
# --check`, where that program is built. Installs helm and kubernetes-validate into target/tools.
#
#   deploy/helm/check.sh [--if-possible]     skips where they cannot be had
set -eu
cd "$(dirname "$0")/../.."
tools="${CARGO_TARGET_DIR:-$PWD/target}/tools"
chart=deploy/helm/roadweave
tests=deploy/helm/tests
kubernetes=1.34.0

cannot() {
    if [ "${1:-}" = --if-possible ]; then
        echo "skipped: the chart is not checked, $2" >&2
        exit 0
    fi
    echo "the chart cannot be checked: $2" >&2
    exit 1
}

helm="$tools/bin/helm"
if [ ! -x "$helm" ]; then
    command -v go >/dev/null || cannot "${1:-}" "go is not installed, which builds helm"
    GOBIN="$tools/bin" go install helm.sh/helm/v3/cmd/helm@v3.22.0 >/dev/null 2>&1 ||
        cannot "${1:-}" "helm cannot be built"
fi
validate="$tools/kubernetes-validate/bin/kubernetes-validate"
if [ ! -x "$validate" ]; then
    python3 -m venv "$tools/kubernetes-validate" &&
        "$tools/kubernetes-validate/bin/pip" install --quiet kubernetes-validate==1.37.0 ||
        cannot "${1:-}" "kubernetes-validate cannot be installed"
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
# Keys come by the join, which has happened in such a folder.
mkdir "$scratch/joined"
touch "$scratch/joined/fleet.0"

# What is in the ConfigMaps, each file in a folder of its own, is a file of proxies or anchors.
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

for values in "$tests"/*.yaml; do
    echo "$values"
    "$helm" lint --quiet --strict --kube-version "$kubernetes" --values "$values" "$chart"
    "$helm" template fleet "$chart" --kube-version "$kubernetes" --values "$values" >"$rendered"
    "$validate" --quiet --strict --kubernetes-version "${kubernetes%.*}" "$rendered"
    [ -z "$roadweave" ] || check_files
done
# A file that is none is found.
if [ -n "$roadweave" ]; then
    "$helm" template fleet "$chart" --kube-version "$kubernetes" --values "$tests/small.yaml" \
        --set-json 'proxies.config="memory_mb = 64"' >"$rendered"
    if check_files 2>"$scratch/said"; then
        echo "a file with a field that there is none of is taken; it should be refused" >&2
        exit 1
    fi
fi

# What is wrong is refused, and named.
refused() {
    if said=$("$helm" template fleet "$chart" --kube-version "$kubernetes" \
        --values "$tests/small.yaml" --set-json "$1" 2>&1); then
        echo "$1 is taken; it should be refused" >&2
        exit 1
    fi
    case "$said" in
        *"$2"*) ;;
        *) echo "$1 is refused without a word of $2: $said" >&2; exit 1 ;;
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
