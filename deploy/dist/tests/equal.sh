#!/bin/sh
# The vehicle's packages made again, at another time and elsewhere, are equal to the byte.
. "$(dirname "$0")/lib.sh"
export PATH="$OUT/tools/bin:$PATH"
needs nfpm
[ -f "$OUT/epoch" ] || skip "there are no packages: make dist"
SOURCE_DATE_EPOCH=$(cat "$OUT/epoch") VERSION=$version TZ=UTC LC_ALL=C
export SOURCE_DATE_EPOCH VERSION TZ LC_ALL
mkdir -p "$ROOT/equal/packages"
for folder in bin pages sbom; do ln -s "$OUT/$folder" "$ROOT/equal/$folder"; done
arch=$(basename "$(ls -d "$OUT"/bin/* | head -n 1)")
(umask 077 && deploy/dist/pack.sh roadweave "$arch" "$ROOT/equal")
for file in "$ROOT"/equal/packages/*; do
    cmp "$file" "$PACKAGES/${file##*/}" || fail "${file##*/} differs"
done
