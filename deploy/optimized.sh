#!/bin/sh
# The product compiled by a profile of what it does: code that packets meet lies together, and what
# they never meet out of its way. docs/experiments/tunnel-speed.md says what that brings.
#
#   deploy/optimized.sh     target/optimized/roadweave, with the workshop beside it
#
# A build that counts carries video over links that lose packets, streams and transfers between
# namespaces of its own, and what it counted makes the second build. Some 10 minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
folder=$PWD/target/optimized
rustc=${RUSTC:-rustc}

host=$("$rustc" -vV | sed -n 's/^host: //p')
llvm=$("$rustc" -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
# What reads the profile has to be of the compiler's LLVM.
merge=""
for program in "$("$rustc" --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" \
    "/usr/lib/llvm-$llvm/bin/llvm-profdata" "$(command -v "llvm-profdata-$llvm" || true)"; do
    if [ -x "$program" ]; then merge=$program && break; fi
done
if [ -z "$merge" ]; then
    echo "llvm-profdata of LLVM $llvm is missing. Install it with one of:" >&2
    echo "    rustup component add llvm-tools" >&2
    echo "    sudo apt-get install --yes --no-install-recommends llvm-$llvm" >&2
    exit 1
fi

# build NAME FLAG: the product with a flag for all that is of the target, and nothing of the build
# itself, whose own programs would count as well.
build() {
    CARGO_ENCODED_RUSTFLAGS=$2 "$cargo" build --quiet --release --package roadweave --target "$host" \
        --target-dir "$folder/$1"
}
# The workshop is the same for both: it measures, and is not measured.
"$cargo" build --quiet --release --package roadweave-workshop
workshop=${CARGO_TARGET_DIR:-target}/release/roadweave-lab

rm -rf "$folder/counts" "$folder/training"
mkdir -p "$folder/counts" "$folder/training"
build counting "-Cprofile-generate=$folder/counts"
cp "$workshop" "$folder/counting/$host/release/roadweave" "$folder/training/"
# In namespaces of their own, as users of their own.
chmod 1777 "$folder/counts"
train() {
    "$folder/training/roadweave" "$@" >"$folder/training/log" 2>&1 || { cat "$folder/training/log" >&2; exit 1; }
}
train demo --seconds 10 --no-ssim --report "$folder/training/report.html"
train bench tunnel --seconds 1
train bench connections --rate 300 --seconds 3 --total 2000 --open 500

"$merge" merge --output "$folder/profile" "$folder"/counts/*.profraw
build program "-Cprofile-use=$folder/profile"
cp "$workshop" "$folder/program/$host/release/roadweave" "$folder/"
rm -rf "$folder/counts" "$folder/training"
"$folder/roadweave" --version
