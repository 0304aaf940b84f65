#!/bin/sh
# The scripts of packages: an upgrade restarts each unit's instances, a removal stops and disables
# them. The services' user is created once, and older files are given to its group.
. "$(dirname "$0")/lib.sh"
bin=$ROOT/bin said=$ROOT/said
mkdir -p "$bin" "$ROOT/roadweave" "$ROOT/private/roadweave-web"
# shellcheck disable=SC2016  # it is for the stub to expand
printf '#!/bin/sh\nset -f\nfor word in "$@"; do echo "$1 $word"; done >>"%s"\n' "$said" >"$bin/systemctl"
for name in useradd chgrp; do printf '#!/bin/sh\necho "%s $*" >>"%s"\n' $name "$said" >"$bin/$name"; done
printf '#!/bin/sh\ntest -f "%s/user"\n' "$ROOT" >"$bin/id"
chmod 755 "$bin"/*
# run SCRIPT WORD...: as where systemd runs, with no files of this machine.
run() {
    script=deploy/dist/scripts/$1
    shift
    sed "s|-d /run/systemd/system|-d $ROOT|; s|/etc/|$ROOT/|g; s|/var/lib/|$ROOT/|g" "$script" >"$ROOT/run"
    PATH=$bin:$PATH sh "$ROOT/run" "$@"
}
for unit in deploy/systemd/*.service; do
    name=$(basename "$unit")
    case $name in roadweave-web@*) of=web- ;; *) of="" ;; esac
    for kind in deb rpm; do
        case $kind in
            deb) upgrade="configure 1" remove=remove ;;
            rpm) upgrade=2 remove=0 ;;
        esac
        : >"$said"
        # shellcheck disable=SC2086  # a list of words
        run "$of$kind.postinstall" $upgrade
        running=$(echo "$name" | sed 's/@/@*/')
        for wanted in "daemon-reload daemon-reload" "try-restart $running"; do
            grep -qxF "$wanted" "$said" || fail "$of$kind, upgrade: no $wanted"
        done
        : >"$said"
        run "$of$kind.preremove" "$remove"
        run "$of$kind.postremove" "$remove"
        for wanted in "stop $running" "disable $name" "daemon-reload daemon-reload"; do
            grep -qxF "$wanted" "$said" || fail "$of$kind, removal: no $wanted"
        done
    done
done
for of in deb.postinstall rpm.preinstall; do
    rm -rf "$ROOT/roadweave" "$ROOT/user" && mkdir -p "$ROOT/roadweave/hooks"
    for file in client.toml hooks/join.toml; do touch "$ROOT/roadweave/$file"; done
    chmod 700 "$ROOT/roadweave" && chmod 600 "$ROOT"/roadweave/*.toml "$ROOT"/roadweave/hooks/*
    : >"$said"
    run $of configure
    grep -q '^useradd --system .* roadweave$' "$said" || fail "$of: no user is made"
    for wanted in "750:" "640:/client.toml" "600:/hooks/join.toml"; do
        [ "$(stat -c %a "$ROOT/roadweave${wanted#*:}")" = "${wanted%:*}" ] ||
            fail "$of: the mode of /etc/roadweave${wanted#*:} is not ${wanted%:*}"
    done
    for wanted in "" /client.toml; do
        grep -qxF "chgrp roadweave $ROOT/roadweave$wanted" "$said" || fail "$of: no chgrp of $wanted"
    done
    touch "$ROOT/user" && chmod 700 "$ROOT/roadweave" && : >"$said"
    chgrp 65534 "$ROOT/roadweave" 2>/dev/null || continue
    run $of configure
    ! grep -q 'useradd\|chgrp' "$said" || fail "$of: files are given to the group again"
done
run web-deb.postremove purge
[ ! -e "$ROOT/private/roadweave-web" ] || fail "a purge leaves the tokens"
[ -d "$ROOT/roadweave" ] || fail "a purge of roadweave-web removes files of another package"
