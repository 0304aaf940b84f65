#!/bin/bash
# Reproduces the figures of the papers one after the other: tools/experiments/figures.md.
#
# usage: scripts/figures.sh --lab PROGRAM --out DIR [--drives DIR] [--pairs DIR] [--quick] [NAME..]
#
# PROGRAM is roadweave-lab. Each figure writes OUT/NAME.json, or NAME.txt for text, and its messages
# to NAME.err; without a name, all figures are run. Without --drives, the synthetic set of seed 1 is
# generated in OUT/drives; without --pairs, links of WiFi and cellular are synthetic too. --quick
# only tests that everything works: it runs a little of each figure, except for those run by cargo,
# and its figures are meaningless. Exit code: 0, 1 if a figure failed, 2 for wrong arguments.
set -u
cd "$(dirname "$0")/.." || exit 1
trap 'exit 130' INT TERM

CARGO=${CARGO:-cargo}
ALL="cellfusion-9 cellfusion-11 cellfusion-12 cellfusion-13 cellfusion-theorem
xlink-6 xlink-8 xlink-10 xlink-13 raven-3 raven-5.6 lola-3 lola-8 lola-9 networking24-table4"

wrong() {
    echo "figures: $1" >&2
    exit 2
}

lab= out= drives= pairs= quick= names=
while [ $# -gt 0 ]; do
    case $1 in
    --lab | --out | --drives | --pairs)
        [ $# -ge 2 ] || wrong "$1 needs a value"
        declare "${1#--}=$2"
        shift
        ;;
    --quick) quick=1 ;;
    -*) wrong "unknown option $1; there are --lab, --out, --drives, --pairs, --quick" ;;
    *)
        case " $(echo $ALL) " in
        *" $1 "*) names="$names $1" ;;
        *) wrong "unknown figure $1; there are $(echo $ALL)" ;;
        esac
        ;;
    esac
    shift
done
[ -n "$lab" ] && [ -n "$out" ] || wrong "--lab and --out are needed"
[ -x "$lab" ] || wrong "--lab $lab: no program"
[ -z "$drives" ] || [ -d "$drives" ] || wrong "--drives $drives: no directory"
[ -z "$pairs" ] || [ -d "$pairs" ] || wrong "--pairs $pairs: no directory"
mkdir -p "$out" || exit 1

# Size of the runs: seconds of a drive, number of seeds, and so on.
if [ -n "$quick" ]; then
    seconds=4 viewer=8 megabytes=1 set="--drives 3 --seconds 12" some_pairs=1 routes="--routes 2 --repeats 1"
    rtts="--only baseline,rtt_40" encoder=lola,xnc
else
    seconds=30 viewer=60 megabytes=4 set= some_pairs=4 routes=
    rtts="--only baseline,rtt_40,rtt_70,rtt_120,rtt_320" encoder=lola,xnc,xnc@8M,each-single
fi
[ -n "$pairs" ] && viewers="--traces $pairs" || viewers="--pairs $some_pairs"
thresholds=minrtt,xlink:95-80+first,xlink:90-80+first,xlink:90-60+first,xlink:60-50+first
thresholds=$thresholds,xlink:60-1+first,xlink:1-1+first

compare() { "$lab" lab compare --drives "$drives" --seconds $seconds --strategies "$1" --json; }
vod() { "$lab" lab vod $viewers --seeds 1 --seconds $viewer --ways "$1" --json; }
encoder() { "$lab" lab encoder --drives "$drives" --seconds $seconds --json "$@"; }

draw() {
    case $1 in
    cellfusion-9) compare minrtt,bonding,xnc ;;
    cellfusion-11) compare xnc,minrtt,ecf,xlink,redundant,xnc-sigcomm23 ;;
    cellfusion-12) compare xnc,pluribus ;;
    cellfusion-13) compare xnc,xnc-no-coding,xnc-no-qoe,xnc-combinations ;;
    cellfusion-theorem) $CARGO bench --quiet --package roadweave-coding --bench theorem ;;
    xlink-6) vod minrtt,xlink:95-80+first,xlink:1-1+first ;;
    xlink-8) "$lab" lab downloads $rtts --mebibytes $megabytes --congestion cubic --strategy xlink \
        --tcp cubic --seeds 1 --json ;;
    xlink-10) vod $thresholds ;;
    xlink-13) vod minrtt,xlink:95-80+first,tunnel:cubic ;;
    raven-3) "$lab" lab raven --traces "$drives" $routes --json ;;
    raven-5.6) "$lab" lab raven --loads video,unbroken --traces "$drives" $routes --json ;;
    lola-3) "$lab" lab delays --traces "$drives" --json ;;
    lola-8) encoder --ways $encoder ;;
    lola-9) encoder --ways lola,xnc --uplinks att,verizon ;;
    networking24-table4) $CARGO test --quiet --package roadweave-lab --test lab router -- --nocapture ;;
    esac
}

if [ -z "$drives" ]; then
    drives=$out/drives
    rm -rf "$drives"
    "$lab" trace generate --set --seed 1 $set --out "$drives" >&2 || exit 1
fi
failed=
for name in ${names:-$ALL}; do
    ending=json
    case $name in
    cellfusion-theorem | networking24-table4)
        ending=txt
        if [ -n "$quick" ]; then
            echo "figures: $name left out, there is no short run"
            continue
        fi
        ;;
    esac
    file=$out/$name.$ending
    rm -f "$file"
    begin=$SECONDS
    draw "$name" >"$file.part" 2>"$out/$name.err"
    code=$?
    if [ $code -eq 0 ] && mv "$file.part" "$file"; then
        echo "figures: $name in $file, $((SECONDS - begin)) s"
    else
        rm -f "$file.part"
        failed="$failed $name"
        echo "figures: $name FAILED, exit code $code: $(tail -n 1 "$out/$name.err") ($out/$name.err)"
    fi
done
[ -z "$failed" ] || { echo "figures: failed:$failed" >&2; exit 1; }
