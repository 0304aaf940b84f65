#!/bin/sh
# `cargo test --no-fail-fast` with parallel test programs. Programs that mostly wait, because they
# start real programs in their own namespaces, run side by side. Programs in virtual time run beside
# them, one fewer at a time than there are CPUs. All others, some of which measure time or use all
# CPUs, run one after another, as with cargo.
#
#   scripts/test.sh [--workspace]      which packages, as for cargo
#   ONLY=/lab/ scripts/test.sh         programs whose path matches
#
# The output of a program is printed at once when it has ended; failures are listed at the end.
set -eu
cd "$(dirname "$0")/.."
cargo="${CARGO:-cargo}"
# Paths of programs that mostly wait; a test of theirs takes a sixteenth of a CPU.
waiting='/(crates/((admin|roadweave|web)/tests|linux|node)|tools/video/tests)[/.]'
# Paths of programs in virtual time; some have a single test, which takes one CPU.
virtual='/(crates/(stream|tunnel|quic|schedule|recovery|coding|proto|fleet)|tools/(lab|bench/tests/it))[/.]'
# This one measures the capacity of a link.
alone=/crates/roadweave/tests/measured.rs
side_by_side=2
# CPUs for the programs in virtual time. Priorities do not help: with low-priority load, Linux 6.18
# starves its own threads for seconds, and each `nft` waits for them.
spare=$(($(nproc) > 1 ? $(nproc) - 1 : 1))

# Runs one program: folder of its package, its source, the program, and the folder for its output.
if [ "${1:-}" = --one ]; then
    folder=$2 source=${3#"$PWD/"} program=$4 results=$5
    kept="$results/${program##*/}"
    # Most of the programs that wait are in this one.
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
# For each test program a line with the three arguments of --one.
sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo\.toml".*"src_path":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1\t\2\t\3/p' \
    "$results/built" | grep -E "${ONLY:-.}" >"$results/programs" || true
[ -s "$results/programs" ] || { echo "cargo names no test program" >&2 && exit 1; }

# Runs the programs listed on standard input, $1 at a time, through the remaining arguments.
run() {
    at_a_time=$1
    shift
    # shellcheck disable=SC2016  # that shell expands it
    tr '\t' '\n' | "$@" xargs -d '\n' -r -P "$at_a_time" -n 3 \
        sh -c '"$0" --one "$@" "$results"' scripts/test.sh
}
listed() { grep -E "$@" "$results/programs" || true; }

# The longest of each kind start first.
first() { listed "$2" | grep "$1" | grep -v $alone || true; }
rest() { listed "$2" | grep -v -e "$1" -e $alone || true; }
{ first /lab/ "$virtual" && rest /lab/ "$virtual"; } | run "$spare" &
{ first /roadweave/tests/ "$waiting" && rest /roadweave/tests/ "$waiting"; } | run $side_by_side
# These start a PostgreSQL and depend on real time, as in the rate limits of failed logins.
listed /control/src/ | run 1
wait
{ listed -v "$waiting|$virtual|/control/src/" && listed $alone; } | run 1

failed=0
case " $* " in
*" --lib "* | *" --test "*) ;; # cargo refuses --doc beside them
*) "$cargo" test --no-fail-fast --doc "$@" || failed=1 ;;
esac
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
