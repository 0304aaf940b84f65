#!/bin/sh
# Tests a temporary controller against the description of its interface, with valid and invalid
# requests: schemathesis generates them from docs/openapi.json and checks the answers. One object of
# each kind exists (api-check.py), so that most requests have a target.
#
#   deploy/api-check.sh [--examples 20]
set -eu
cd "$(dirname "$0")/.."

examples=20
if [ "${1:-}" = "--examples" ]; then
    examples=$2
fi
target=${CARGO_TARGET_DIR:-target}
venv=$target/api-check/venv
if [ ! -x "$venv/bin/schemathesis" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet 'schemathesis==4.32.5'
fi
${CARGO:-cargo} build --quiet --package roadweave-control --package roadweave
controller=$target/debug/roadweave-controller

folder=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$folder"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
here=127.0.0.1:$port
"$controller" init --address "$here" --listen "$here" --folder "$folder/controller" >"$folder/said"
password=$(sed -n 's/.*password: //p' "$folder/said")
"$controller" run --folder "$folder/controller" 2>"$folder/log" &
pid=$!
curl --silent --insecure --retry 50 --retry-delay 1 --retry-connrefused --output /dev/null \
    "https://$here/healthz"
secret=$(python3 deploy/api-check.py "https://$here" "$password" "$target/debug/roadweave" "$folder")

"$venv/bin/schemathesis" --config-file "$folder/schemathesis.toml" run docs/openapi.json \
    --url "https://$here" --tls-verify false \
    --header "Authorization: Bearer $secret" --max-examples "$examples" --rate-limit 40/s \
    --exclude-operation-id live --exclude-operation-id liveDevice \
    --exclude-operation-id deleteApiKey --request-timeout 15 --seed 1 \
    --checks not_a_server_error,response_schema_conformance,content_type_conformance,\
status_code_conformance,negative_data_rejection
kill -0 "$pid" || { cat "$folder/log" >&2; exit 1; }
