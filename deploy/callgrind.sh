#!/bin/sh
# Counts what coding costs of the tunnel's instructions:
# crates/lab/benches/coding_share.rs under callgrind, with coding and without. Instructions do
# not depend on what else the machine does. Valgrind knows neither AVX-512 nor GFNI, so the AVX2
# kernel runs; and crates are not optimised across, so that functions keep their names.
set -eu
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null 2>&1; then
    echo "valgrind is missing. Install it with: sudo apt-get install --yes --no-install-recommends valgrind" >&2
    exit 1
fi
cargo=${CARGO:-cargo}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program=$(CARGO_PROFILE_BENCH_LTO=false "$cargo" bench --package roadweave-lab --bench coding_share --no-run 2>&1 |
    tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')

for strategy in xnc minrtt; do
    counts=$folder/$strategy
    valgrind --quiet --tool=callgrind --callgrind-out-file="$counts" "$program" $strategy
    # What the world around the tunnel calls is the tunnel, less what the tunnel calls back; what
    # the tunnel calls of the coding crate is coding. A call is two lines: how often, then a
    # position and the instructions within.
    awk '
        /^c?fn=/ {
            key = substr($1, index($1, "(")); name = $0; sub(/^[^)]*\) ?/, "", name)
            if (name != "") names[key] = name
            if ($0 ~ /^fn=/) caller = names[key]; else callee = names[key]
        }
        /^calls=/ {
            split($1, parts, "="); calls = parts[2]; getline; cost = $2
            outside = "^<?(coding_share|roadweave_lab)::"
            if (caller ~ outside && callee ~ /^<?roadweave_tunnel::/) tunnel += cost
            if (caller ~ /^<?roadweave_tunnel::/ && callee ~ outside) tunnel -= cost
            if (caller ~ /roadweave_tunnel::/ && callee ~ /roadweave_coding::/) {
                instructions[callee] += cost; times[callee] += calls; all += cost
                if (callee ~ /::(range|encode_all|on_coded)$/) coded += cost
            }
        }
        END {
            printf "tunnel, both ends       %7.1f million instructions\n", tunnel / 1e6
            printf "  crate coding          %7.1f  %.2f %%\n", all / 1e6, 100 * all / tunnel
            printf "    for coded packets   %7.1f  %.2f %%\n", coded / 1e6, 100 * coded / tunnel
            for (name in instructions) if (instructions[name] >= 1e5)
                printf "      %-44s %8d calls  %6.1f  %.2f %%\n", name, times[name], instructions[name] / 1e6,
                    100 * instructions[name] / tunnel | "sort -k4nr"
        }' "$counts"
done
