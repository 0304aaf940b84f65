#!/bin/sh
# Runs a client and a server (client.sh) on an emulated machine with a Cortex-A53, under Debian's
# own kernel, and counts the client's instructions, those of the kernel for it among them.
#
#   deploy/small-box/machine.sh PROGRAM FOLDER MBIT_PER_S...
#
# PROGRAM is the static `roadweave` for aarch64; FOLDER keeps what is downloaded. The last columns
# are a projection: what share of a core the client has at that rate, and what rate fills a core, by
# instructions a second of real ones (docs/experiments/small-boxes.md says whence).
#
# The machine's time is what it computes: a nanosecond an instruction, and none while it sleeps. So
# the figures hardly depend on what else this machine does.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=$1 folder=$2
shift 2
# For so long each rate is sent, in the machine's time.
SECONDS_SENT=5
# In which the emulator has to end.
PATIENCE=900
# Instructions a second.
A53=849e6 A72=1178e6
# Bits of an inner packet of client.sh.
BITS=9600

# Nothing of this is installed here: the packages are unpacked for the machine.
PACKAGES="busybox-static dash iproute2 iperf3 nftables"
KERNEL=linux-image-cloud-arm64
mkdir -p "$folder"
cd "$folder"
if [ ! -e unpacked ]; then
    image=$(apt-cache depends $KERNEL:arm64 | sed -n 's/.*Depends: \(linux-image[^ ]*\)/\1/p' | head -1)
    [ -n "$image" ] || { echo "apt knows no $KERNEL:arm64: dpkg --add-architecture arm64, apt-get update" >&2; exit 1; }
    wanted=$image
    for package in $PACKAGES; do wanted="$wanted $package:arm64"; done
    # shellcheck disable=SC2086  # a list of packages, here and below
    libraries=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances $wanted | grep -E '^(lib|zlib)[^ ]*:arm64$' | grep -v libperl | sort -u)
    rm -rf packages root
    mkdir packages root
    (cd packages && apt-get download --quiet=2 $wanted $libraries 2>&1 | grep -v '^W: Download is performed unsandboxed' >&2 || true)
    for package in packages/*.deb; do dpkg-deb -x "$package" root; done
    touch unpacked
fi

release=$(basename root/lib/modules/*)
rm -rf fs
mkdir -p fs/bin fs/sbin fs/proc fs/sys fs/dev/net fs/run fs/tmp fs/etc fs/var fs/usr/lib fs/lib/modules/"$release"/kernel
cp root/bin/busybox root/bin/ip root/usr/bin/iperf3 root/usr/sbin/nft fs/bin/
# Its own shell takes its own `ip` before that of the path.
cp root/bin/dash fs/bin/sh
ln -s ../bin/busybox fs/sbin/modprobe
ln -s ../run fs/var/run
for name in awk cat chmod cp cut date dirname env expr grep head kill ls mkdir mknod mount ping poweroff \
    rm sed sleep sysctl tail touch tr wc; do
    ln -s busybox fs/bin/$name
done
cp -a root/lib/aarch64-linux-gnu root/lib/ld-linux-aarch64.so.1 fs/lib/
mkdir fs/usr/lib/aarch64-linux-gnu
cp -a root/usr/lib/aarch64-linux-gnu/*.so* fs/usr/lib/aarch64-linux-gnu/
for part in net/netfilter net/ipv4/netfilter net/ipv6/netfilter drivers/net/veth.ko drivers/net/tun.ko lib crypto \
    arch/arm64/crypto; do
    [ -e "root/lib/modules/$release/kernel/$part" ] || continue
    mkdir -p "fs/lib/modules/$release/kernel/$(dirname $part)"
    cp -a "root/lib/modules/$release/kernel/$part" "fs/lib/modules/$release/kernel/$part"
done
cp root/lib/modules/"$release"/modules.builtin* root/lib/modules/"$release"/modules.order fs/lib/modules/"$release"/
qemu-aarch64 root/bin/busybox depmod -b "$PWD/fs" "$release"
aarch64-linux-gnu-gcc -O2 -static -o fs/bin/tally "$here/tally.c"
cp "$here/client.sh" fs/client.sh
cp "$program" fs/bin/roadweave
cat >fs/init <<'INIT'
#!/bin/sh
export PATH=/bin:/sbin ROADWEAVE_INSIDE=yes
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /run
modprobe veth
modprobe tun
modprobe nf_tables
mkdir -p /dev/net
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
# shellcheck disable=SC2046  # a rate and a duration
/client.sh $(sed 's/.*run=\([^ ]*\).*/\1/; s/,/ /' /proc/cmdline) roadweave roadweave
poweroff -f
INIT
chmod +x fs/init
(cd fs && find . | qemu-aarch64 ../root/bin/busybox cpio -o -H newc 2>/dev/null) >initrd

echo "Mbit/s  packets  lost  instructions a packet: own code  kernel  memory KiB, idle  loaded" \
    "   A53 1.4 GHz        A72 1.5 GHz"
for rate in "$@"; do
    timeout $PATIENCE qemu-system-aarch64 -machine virt -cpu cortex-a53 -m 512 -icount shift=0,sleep=off \
        -nographic -nodefaults -serial stdio -no-reboot \
        -kernel root/boot/vmlinuz-"$release" -initrd initrd \
        -append "console=ttyAMA0 quiet panic=-1 run=$rate,$SECONDS_SENT" </dev/null >log 2>&1 || true
    told=$(tr -d '\r' <log | grep -E '^(user|packets) ' | tr '\n' ' ')
    case $told in
        *user*packets*) ;;
        *) echo "failed; the machine said:" >&2 && cat log >&2 && exit 1 ;;
    esac
    echo "$told" | awk -v rate="$rate" -v seconds=$SECONDS_SENT -v a53=$A53 -v a72=$A72 -v bits=$BITS '{
        for (at = 1; at < NF; at += 2) of[$at] = $(at + 1)
        each = (of["user"] + of["kernel"]) / of["packets"]
        busy = each * of["packets"] / seconds
        printf "%6s %8d %5d %32d %7d %17d %7d", rate, of["packets"], of["lost"], \
            of["user"] / of["packets"], of["kernel"] / of["packets"], of["idle_kib"], of["loaded_kib"]
        printf "  %5.1f %% %4d Mbit/s  %5.1f %% %4d Mbit/s\n", \
            100 * busy / a53, a53 / each * bits / 1e6, 100 * busy / a72, a72 / each * bits / 1e6
    }'
done
