#!/bin/sh
# Installs the Debian packages for demo, tests and benches; without root it prints the command.
#
#   deploy/packages.sh [webrtc|video|web|prometheus]    also those of that target
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
need dnsmasq dnsmasq-base
# Validates `roadweave show --json` against its schema.
/usr/bin/python3 -c 'from jsonschema import Draft202012Validator' 2>/dev/null ||
    missing="$missing python3-jsonschema"
need dbus-daemon dbus-daemon
need busctl systemd
# Debian keeps PostgreSQL's programs out of PATH.
PATH="$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)" need initdb postgresql
# For the tests' ModemManager.
/usr/bin/python3 -c 'import gi' 2>/dev/null || missing="$missing python3-gi"

case "${1:-}" in webrtc) need chromium chromium ;; esac
case "${1:-}" in webrtc | web) need npm npm && need node nodejs ;; esac
# Not by default: with systemd, Debian starts a Prometheus for the whole machine.
case "${1:-}" in prometheus) need promtool prometheus ;; esac
# Libraries and plugins: the check for each, and its package.
if [ "${1:-}" = video ]; then
    need pkg-config pkg-config
    need gst-inspect-1.0 gstreamer1.0-tools
    has() { pkg-config --exists "$1" 2>/dev/null || missing="$missing $2"; }
    has gstreamer-1.0 libgstreamer1.0-dev
    has gstreamer-rtp-1.0 libgstreamer-plugins-base1.0-dev
    plugin() { gst-inspect-1.0 --exists "$1" 2>/dev/null || missing="$missing gstreamer1.0-$2"; }
    plugin videotestsrc plugins-base
    plugin rtpbin plugins-good
    plugin srtsink plugins-bad
    plugin x264enc plugins-ugly
    plugin avdec_h264 libav
    plugin ximagesink x
    # A network camera for the tests.
    typelib=/usr/lib/*/girepository-1.0/GstRtspServer-1.0.typelib
    # shellcheck disable=SC2086  # a pattern
    [ -e "$(echo $typelib | cut -d' ' -f1)" ] || missing="$missing gir1.2-gst-rtsp-server-1.0"
fi

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
