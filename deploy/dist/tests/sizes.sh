#!/bin/sh
# The vehicle's packages are below 4 MB, and the program of a box below 8 MB; with a server in it,
# as for a deb, a program may have a little more. rpm and apk, which are compressed least, miss
# their bound by up to a twentieth, and are held below 4.5 MB.
. "$(dirname "$0")/lib.sh"
ls "$PACKAGES"/roadweave[-_]"$version"-* >/dev/null 2>&1 || skip "there are no packages: make dist"
# below BYTES FILE NAME
below() {
    size=$(stat -c %s "$2")
    echo "$size bytes: $3"
    [ "$size" -lt "$1" ] || fail "$3 has $1 bytes or more"
}
for file in "$OUT"/bin/*/box/roadweave; do below 8000000 "$file" "${file#"$OUT"/bin/}"; done
for file in "$OUT"/bin/*/roadweave; do below 12000000 "$file" "${file#"$OUT"/bin/}"; done
for file in "$PACKAGES"/roadweave[-_]"$version"-*; do
    case $file in
        *.rpm | *.apk) bound=4500000 ;;
        *) bound=4000000 ;;
    esac
    below $bound "$file" "${file##*/}"
done
