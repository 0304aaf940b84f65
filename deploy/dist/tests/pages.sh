#!/bin/sh
# Man pages and completions work in man, mandoc, bash, zsh and fish.
. "$(dirname "$0")/lib.sh"
[ -d "$OUT/pages/roadweave" ] || skip "there are no pages: make dist"
needs man
[ -f "$OUT/pages/roadweave/man5/roadweave.toml.5" ] || fail "there is no roadweave.toml(5)"
for page in "$OUT"/pages/*/man[15]/*; do
    MANWIDTH=80 man --warnings --local-file "$page" 2>"$ROOT/warnings" >"$ROOT/page"
    [ ! -s "$ROOT/warnings" ] && grep -q SYNOPSIS "$ROOT/page" ||
        fail "${page##*/}: $(cat "$ROOT/warnings")"
    if has mandoc; then
        mandoc -T lint -W error "$page" >"$ROOT/warnings" || fail "$(cat "$ROOT/warnings")"
    fi
done
has mandoc || echo "$part: mandoc is not installed: pages are tried with man alone"

bash -n "$OUT/pages/roadweave-controller/bash/roadweave-controller" || fail "bash: completions"
# completes PROGRAM WORDS... : what bash offers for the last word.
completes() {
    bash -c '. "$1" && shift && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" &&
        COMP_POINT=${#COMP_LINE} && _roadweave "$1" "${@: -1}" "${@: -2:1}" && echo "${COMPREPLY[*]}"' \
        - "$OUT/pages/roadweave/bash/roadweave" "$@"
}
[ "$(completes roadweave cli)" = client ] || fail "bash completes cli to $(completes roadweave cli)"
[ "$(completes roadweave peer ad)" = add ] || fail "bash completes peer ad to $(completes roadweave peer ad)"
[ "$(completes roadweave client --conf)" = --config ] || fail "bash does not complete --conf"
if has zsh; then
    zsh -f -c "autoload -U compinit && compinit -D -u && . $OUT/pages/roadweave/zsh/_roadweave &&
        whence _roadweave >/dev/null" || fail "zsh: completions"
else
    echo "$part: zsh is not installed: its completions are not tried"
fi
if has fish; then
    said=$(HOME=$ROOT fish --no-config -c ". $OUT/pages/roadweave/fish/roadweave.fish
        complete --do-complete 'roadweave cli'" | cut -f 1)
    [ "$said" = client ] || fail "fish completes cli to $said"
else
    echo "$part: fish is not installed: its completions are not tried"
fi
