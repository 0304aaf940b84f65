#!/bin/sh
# A box's package for ARM is below 4 MB, an rpm, which is compressed least, below 4.5 MB, and the
# program of a box below 8 MB; a program that includes a server, as in a deb, is below 12 MB. For
# x86_64, whose instructions are longer, a package is below 5 MB and the program of a box below
# 10 MB.
. "$(dirname "$0")/lib.sh"
ls "$PACKAGES"/roadweave[-_]"$version"-* >/dev/null 2>&1 || skip "there are no packages: make dist"
# below BYTES FILE NAME
below() {
    size=$(stat -c %s "$2")
    echo "$size bytes: $3"
    [ "$size" -lt "$1" ] || fail "$3 has $1 bytes or more"
}
for file in "$OUT"/bin/*/box/roadweave; do
    case $file in
        */x86_64/*) bound=10000000 ;;
        *) bound=8000000 ;;
    esac
    below $bound "$file" "${file#"$OUT"/bin/}"
done
for file in "$OUT"/bin/*/roadweave; do below 12000000 "$file" "${file#"$OUT"/bin/}"; done
for file in "$PACKAGES"/roadweave[-_]"$version"-*; do
    case $file in
        *x86_64* | *amd64*) bound=5000000 ;;
        *.rpm) bound=4500000 ;;
        *) bound=4000000 ;;
    esac
    below $bound "$file" "${file##*/}"
done
