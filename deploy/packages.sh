#!/bin/sh
# Installs the Debian packages that demo, tests and benches need; without root it prints
# the command.
#
#   deploy/packages.sh [webrtc|downloads|vod]     also those of that target of the Makefile
set -eu

missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need cc gcc
need c++ g++
need ip iproute2
need nft nftables
need ping iputils-ping
need ffmpeg ffmpeg
need iperf3 iperf3
need unshare util-linux
need tshark tshark
# Debian keeps PostgreSQL's programs out of PATH.
PATH="$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)" need initdb postgresql
# A library, which `bench coding` compares with.
/sbin/ldconfig -p 2>/dev/null | grep -q 'libisal\.so\.2' || missing="$missing libisal2"

case "${1:-}" in webrtc | vod) need chromium chromium && need npm npm ;; esac
case "${1:-}" in webrtc | downloads | vod) need node nodejs ;; esac
case "${1:-}" in downloads | vod) need mptcpize mptcpize ;; esac
case "${1:-}" in vod) need nginx nginx-light ;; esac

[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "These programs are missing; install the packages that hold them:$missing" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Packages are missing. Install them with:" >&2
    echo "    sudo apt-get install --yes --no-install-recommends$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
# shellcheck disable=SC2086  # a list of packages
apt-get install --quiet=2 --yes --no-install-recommends $missing >/dev/null
