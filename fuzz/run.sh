#!/bin/sh
# Fuzzes the decoders of crates/proto, coding and fleet, each target for a number of seconds, with
# one target per CPU at a time.
#
#   fuzz/run.sh [--keep] [--seconds 20] [TARGET...]
#
# With --keep, inputs that reach all edges are written to kept/, which is checked in. Stable Rust is
# sufficient: the flags below are cargo-fuzz's, and RUSTC_BOOTSTRAP enables the address sanitizer
# for this build only. A target that ends early has found a fault: libFuzzer prints it and the file
# in fuzz/artifacts that reproduces it with
#   target/fuzz/HOST/release/TARGET FILE
set -eu
cd "$(dirname "$0")"

# Runs a single target: folder of the programs, seconds, name.
if [ "${1:-}" = "--one" ]; then
    bin=$2 seconds=$3 target=$4
    mkdir -p "corpus/$target" artifacts
    log="../target/fuzz/$target.log"
    case $target in
        coding_*) length=1024 ;; # scripts: longer ones only take longer
        fleet_*) length=16384 ;; # a few messages
        *) length=4200 ;;        # just beyond the longest control message
    esac
    if ! "$bin/$target" "corpus/$target" -max_total_time="$seconds" -max_len=$length -timeout=10 \
        -rss_limit_mb=2048 -artifact_prefix="artifacts/$target-" -print_final_stats=1 \
        >"$log" 2>&1; then
        grep -A 4 -e "panicked at" -e "ERROR: " -e "Test unit written" "$log" | head -n 40 >&2
        echo "$target found a fault; the whole log is in target/fuzz/$target.log" >&2
        exit 1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    if [ -n "${KEEP:-}" ]; then
        kept=$(mktemp -d)/$target
        mkdir "$kept"
        "$bin/$target" -set_cover_merge=1 "$kept" "corpus/$target" >>"$log" 2>&1
        "$bin/seeds" --keep "$kept"
        rm -r "${kept%/*}"
    fi
    echo "$target: $runs runs in $seconds s, $edges edges, no fault"
    exit
fi

if [ "${1:-}" = "--keep" ]; then
    export KEEP=1
    shift
fi
seconds=20
if [ "${1:-}" = "--seconds" ]; then
    seconds=$2
    shift 2
fi
[ $# -gt 0 ] || set -- coding_decoder coding_hostile wire_datagram wire_control wire_inner wire_geneve \
    wire_stream wire_socks media_boxes media_http fleet_frames fleet_documents

host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0"
export RUSTC_BOOTSTRAP=1
# With an explicit --target, the flags do not apply to build scripts and macros.
export RUSTFLAGS="$coverage -Zsanitizer=address --cfg fuzzing -Ccodegen-units=1"
${CARGO:-cargo} build --release --quiet --bins --target "$host" --target-dir ../target/fuzz
bin="../target/fuzz/$host/release"

"$bin/seeds" corpus
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 ./run.sh --one "$bin" "$seconds"
