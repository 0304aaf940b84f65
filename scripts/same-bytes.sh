#!/bin/sh
# Checks that a change only moves code: equal seeds must give equal bytes before and after it.
#
#   scripts/same-bytes.sh BASE [HEAD]     compares two commits; HEAD defaults to the tree as it is
#
# Runs `lab run` of every scenario and `lab compare` of three drives with every strategy, and
# compares their JSON, with delays and time lines. The output of a commit is stored in
# target/same-bytes/out, by commit, drives and length. DRIVES=DIR takes recorded drives instead of
# synthetic ones, SECONDS_EACH sets the length of a run.
set -eu
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
seconds="${SECONDS_EACH:-20}"
base=$(git rev-parse --verify "${1:?usage: scripts/same-bytes.sh BASE [HEAD]}^{commit}")
if [ -z "${2:-}" ] && [ -n "$(git ls-files --others --exclude-standard)" ]; then
    echo "files that git does not know would be left out: git add them, or name a commit" >&2
    exit 2
fi
tree=$(git stash create)
head=$(git rev-parse --verify "${2:-${tree:-HEAD}}^{commit}")
work=$PWD/target/same-bytes
drives=${DRIVES:-$work/drives-$seconds}
strategies=best-single,minrtt,minrtt-unreliable,xnc,xnc-patient,xnc-sigcomm23,xnc-no-coding
strategies=$strategies,xnc-no-qoe,xnc-combinations,xnc-runs,ecf,xlink,pluribus,redundant,bonding
strategies=$strategies,raven,raven:95,lola,xlink:90-60

outputs() {
    settings=$(find "$drives" -type f | sort | xargs cat | sha256sum | cut -c 1-12)
    echo "$work/out/$settings-$seconds/$1"
}

# One checkout for all commits, so that common parts are built once. Optimisation does not change
# floating-point results, so the settings are those that build fastest.
build() {
    if [ -e "$work/tree/.git" ]; then
        git -C "$work/tree" checkout --quiet --detach "$1"
    else
        git worktree add --quiet --force --detach "$work/tree" "$1"
    fi
    (cd "$work/tree" && CARGO_TARGET_DIR="$work/built" CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_INCREMENTAL=true CARGO_PROFILE_RELEASE_DEBUG=0 \
        "$CARGO" build --release --quiet --bins --workspace --exclude roadweave-video)
}

print_all() {
    if [ -d "$drives" ] && [ -e "$(outputs "$1")/complete" ]; then return; fi
    echo "$1: building" >&2
    build "$1"
    program=$work/built/release/roadweave
    if [ ! -d "$drives" ]; then
        rm -rf "$drives.new"
        "$program" trace generate --drives 3 --seconds "$seconds" --out "$drives.new" >&2
        mv "$drives.new" "$drives"
    fi
    out=$(outputs "$1")
    mkdir -p "$out"
    for scenario in "$work/tree"/scenarios/*.toml; do
        name=$(basename "$scenario" .toml)
        echo "$1: lab run $name" >&2
        (cd "$work/tree" && "$program" lab run "scenarios/$name.toml" --json --details) \
            >"$out/run-$name.json"
    done
    echo "$1: lab compare" >&2
    "$program" lab compare --drives "$drives" --strategies "$strategies" --seconds "$seconds" \
        --json --details >"$out/compare.json" 2>"$out/compare.log"
    touch "$out/complete"
}

print_all "$base"
print_all "$head"
if diff --brief --recursive --exclude complete --exclude compare.log \
    "$(outputs "$base")" "$(outputs "$head")"; then
    bytes=$(cat "$(outputs "$head")"/*.json | wc -c)
    echo "the same bytes: $bytes of $(ls "$(outputs "$head")"/*.json | wc -l) outputs"
else
    echo "not the same bytes: $(outputs "$base") $(outputs "$head")" >&2
    exit 1
fi
