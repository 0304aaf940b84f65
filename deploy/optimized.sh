#!/bin/sh
# Compiles the product with profile-guided optimisation: code on the path of packets is placed
# together, apart from other code. tools/experiments/tunnel-speed.md has the gain.
#
#   deploy/optimized.sh     target/optimized/roadweave, with roadweave-lab beside it
#
# An instrumented build carries video and transfers over links that lose packets, in its own
# namespaces; the second build uses its counts. Takes about 10 minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
. deploy/version.sh
cargo=${CARGO:-cargo}
folder=$PWD/target/optimized
# Without it, programs are where the following steps expect them.
unset CARGO_BUILD_TARGET

version=$("${RUSTC:-rustc}" -vV)
host=$(echo "$version" | sed -n 's/^host: //p')
llvm=$(echo "$version" | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
# The program that reads the counts must be of the compiler's LLVM version.
merge=""
for program in "$("${RUSTC:-rustc}" --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" \
    "/usr/lib/llvm-$llvm/bin/llvm-profdata" "$(command -v "llvm-profdata-$llvm" || true)"; do
    if [ -x "$program" ]; then merge=$program && break; fi
done
if [ -z "$merge" ]; then
    echo "llvm-profdata of LLVM $llvm is missing. Install it with one of:" >&2
    echo "    rustup component add llvm-tools" >&2
    echo "    sudo apt-get install --yes --no-install-recommends llvm-$llvm" >&2
    exit 1
fi

# build FOLDER FLAG: builds the product with a flag for the target only, not for build scripts and
# macros, whose programs would be counted as well.
build() {
    more=${RUSTFLAGS:+$(printf ' %s' "$RUSTFLAGS" | tr ' ' '\037')}
    CARGO_ENCODED_RUSTFLAGS=$2$more "$cargo" build --quiet --release --package roadweave \
        --target "$host" --target-dir "$folder/$1"
}
# roadweave-lab is the same for both builds: it measures and is not measured.
"$cargo" build --quiet --release --package roadweave-bench
lab=${CARGO_TARGET_DIR:-target}/release/roadweave-lab

# A private folder, since its content becomes code. Daemons that have dropped their privileges can
# reach it, unlike perhaps the checkout.
training=$(mktemp -d)
trap 'rm -rf "$training"' EXIT
export LLVM_PROFILE_FILE="$training/%m_%p.profraw"
build counting "-Cprofile-generate"
cp "$lab" "$folder/counting/$host/release/roadweave" "$training/"
train() {
    "$training/roadweave" "$@" >"$training/log" 2>&1 || { cat "$training/log" >&2 && exit 1; }
}
train demo --seconds 10 --no-ssim --report "$training/report.html"
train bench tunnel --seconds 1

"$merge" merge --output "$training/profile" "$training"/*.profraw
# A command line alone counts to thousands, the daemons to tens of millions.
most=$("$merge" show "$training/profile" | sed -n 's/^Maximum function count: //p')
if [ "${most:-0}" -lt 1000000 ]; then
    echo "What the daemons counted is missing: the profile counts to ${most:-nothing}." >&2
    exit 1
fi
# Named by its content, so that cargo recompiles everything when it changes.
rm -f "$folder"/*.profdata
profile=$folder/$(cksum <"$training/profile" | cut -d ' ' -f 1).profdata
mv "$training/profile" "$profile"
unset LLVM_PROFILE_FILE
build program "-Cprofile-use=$profile"
cp --remove-destination "$lab" "$folder/program/$host/release/roadweave" "$folder/"
"$folder/roadweave" --version
