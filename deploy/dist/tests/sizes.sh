#!/bin/sh
# The vehicle's packages are below 4 MB, and its programs below 8 MB. Those for OpenWrt, which takes
# gzip alone, miss that by a tenth, and are held below 5 MB.
. "$(dirname "$0")/lib.sh"
ls "$PACKAGES"/roadweave[-_]"$version"-* >/dev/null 2>&1 || skip "there are no packages: make dist"
# below BYTES FILE NAME
below() {
    size=$(stat -c %s "$2")
    echo "$size bytes: $3"
    [ "$size" -lt "$1" ] || fail "$3 has $1 bytes or more"
}
for file in "$OUT"/bin/*/roadweave; do below 8000000 "$file" "${file#"$OUT"/bin/}"; done
for file in "$PACKAGES"/roadweave[-_]"$version"-*; do
    case $file in
        *.ipk | *.apk) bound=5000000 ;;
        *) bound=4000000 ;;
    esac
    below $bound "$file" "${file##*/}"
done
