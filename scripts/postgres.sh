#!/bin/sh
# Runs a command with a PostgreSQL of its own, which is gone afterwards. Its address comes after the
# words of the command, as --database ADDRESS.
#
#   scripts/postgres.sh target/release/examples/fleet_load --boxes 1000
set -eu

for bin in /usr/lib/postgresql/*/bin; do
    PATH="$bin:$PATH"
done
folder=$(mktemp -d)
chmod 755 "$folder"
# It refuses to run as root.
as=
if [ "$(id -u)" -eq 0 ]; then
    as="setpriv --reuid=nobody --regid=nogroup --clear-groups --"
    chown nobody "$folder"
fi
cd "$folder"
$as initdb --pgdata data --username=postgres --auth=trust --encoding=UTF8 --no-locale >/dev/null
stop() {
    $as pg_ctl --pgdata "$folder/data" --mode=fast stop >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap stop EXIT
$as pg_ctl --pgdata data --log log --wait start \
    --options "-k $folder -c listen_addresses= -c max_connections=100" >/dev/null
$as createdb --host "$folder" --username postgres fleet
cd "$OLDPWD"
"$@" --database "postgres://postgres@localhost/fleet?host=$folder"
