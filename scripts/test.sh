#!/bin/sh
# `cargo test --no-fail-fast`, but with those test programs side by side that wait for most of their
# time: they start real programs in namespaces of their own. Those whose time is virtual run beside
# them, one fewer at a time than there are processors. All others, some of which measure time or
# take all processors, run one after another, as cargo runs them.
#
#   scripts/test.sh [--workspace]      which packages, as for cargo
#   ONLY=/lab/ scripts/test.sh         programs whose path matches
#
# What a program prints comes as one piece once it has ended; at the end is what failed.
set -eu
cd "$(dirname "$0")/.."
cargo="${CARGO:-cargo}"
# Where those lie that wait: a test of them takes a sixteenth of a processor.
waiting='/(crates/((admin|roadweave|web)/tests|device)|tools/video/tests)[/.]'
# Those that know no clock but their own; some have a single test, which takes one processor.
virtual='/(crates/(stream|tunnel|quic|schedule|recovery|coding|proto|fleet)|tools/(lab|bench/tests/it))[/.]'
# One of those that wait measures what a link carries.
alone=/crates/roadweave/tests/measured.rs
side_by_side=2
# What those leave of the processors. No priority says so: where low priorities meet other work,
# Linux 6.18 leaves its own threads, for which each `nft` waits, without a processor for seconds.
spare=$(($(nproc) > 1 ? $(nproc) - 1 : 1))

# One program: its package's folder, its source, itself; and where what it prints is kept.
if [ "${1:-}" = --one ]; then
    folder=$2 source=${3#"$PWD/"} program=$4 results=$5
    kept="$results/${program##*/}"
    # Most of those that wait are in one program.
    case $source in crates/roadweave/tests/it/*) export RUST_TEST_THREADS=6 ;; esac
    echo "     Running $source (${program#"$PWD/"})" >"$kept.log"
    if ! (cd "$folder" && exec "$program") >>"$kept.log" 2>&1; then
        {
            echo "$source"
            sed -n 's/^test \(.*\) \.\.\. FAILED$/    \1/p' "$kept.log"
        } >"$kept.failed"
    fi
    exec flock "$results" cat "$kept.log"
fi

results=$(mktemp -d)
export results
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT TERM
"$cargo" test --no-run --message-format=json-render-diagnostics "$@" >"$results/built"
# Of each test program the three that --one wants, in a line.
sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo\.toml".*"src_path":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1\t\2\t\3/p' \
    "$results/built" | grep -E "${ONLY:-.}" >"$results/programs" || true
[ -s "$results/programs" ] || { echo "cargo names no test program" >&2 && exit 1; }

# Runs the programs that standard input lists, so many at a time, by what else is given.
run() {
    at_a_time=$1
    shift
    # shellcheck disable=SC2016  # that shell expands it
    tr '\t' '\n' | "$@" xargs -d '\n' -r -P "$at_a_time" -n 3 \
        sh -c '"$0" --one "$@" "$results"' scripts/test.sh
}
listed() { grep -E "$@" "$results/programs" || true; }

# By far the longest of each kind come first.
first() { listed "$2" | grep "$1" | grep -v $alone || true; }
rest() { listed "$2" | grep -v -e "$1" -e $alone || true; }
{ first /lab/ "$virtual" && rest /lab/ "$virtual"; } | run "$spare" &
{ first /roadweave/tests/ "$waiting" && rest /roadweave/tests/ "$waiting"; } | run $side_by_side
# These start a PostgreSQL, and have stopwatches for whoever guesses.
listed /control/src/ | run 1
wait
{ listed -v "$waiting|$virtual|/control/src/" && listed $alone; } | run 1

failed=0
"$cargo" test --no-fail-fast --doc "$@" || failed=1
if cat "$results"/*.failed >"$results/all" 2>/dev/null; then
    echo "These failed:"
    cat "$results/all"
    failed=1
fi
ran=$(find "$results" -name '*.log' | wc -l)
if [ "$ran" -ne "$(wc -l <"$results/programs")" ]; then
    echo "Of $(wc -l <"$results/programs") test programs $ran ran."
    failed=1
fi
exit $failed
