//! The TUN device: inner packets between the kernel and the session. Not persistent: it ends with
//! the process, as do its addresses and routes. Segmentation offload (TSO, USO since Linux 6.2) is
//! used where available. Source: Linux `Documentation/networking/tuntap.rst`.

#![allow(unsafe_code, reason = "a TUN is set up by ioctls, which have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::IpNet;
use roadweave_proto::peer_text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, IntegerSetter, Opcode, Setter, Updater, opcode};

use crate::offload::{Coalescer, HEADER_LEN, Header, PACKET_MAX, split};
use crate::{DeviceError, Netlink, sysctl};

/// How to set up a TUN.
#[derive(Clone, Debug)]
pub struct TunOptions {
    /// The interface's name, 1 to 15 bytes; `%d` stands for the first free number.
    pub name: String,
    /// Largest inner packet, bytes.
    pub mtu: u16,
    /// The interface's addresses, with the length of their network.
    pub addresses: Vec<IpNet>,
    /// Whether to use the kernel's segmentation offload.
    pub offload: bool,
}

/// A TUN interface, nonblocking.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    index: u32,
    mtu: u16,
    offload: Offload,
    buffer: Vec<u8>,
    coalescer: Coalescer,
    statistics: TunStatistics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offload {
    Off,
    Tcp,
    TcpAndUdp,
}

/// Counters since the TUN was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunStatistics {
    /// Inner packets read.
    pub packets_read: u64,
    /// Bytes of the inner packets read.
    pub bytes_read: u64,
    /// System calls that read packets; fewer than packets with offload.
    pub reads: u64,
    /// Inconsistent reads, discarded.
    pub malformed: u64,
    /// Inner packets written.
    pub packets_written: u64,
    /// Bytes of the inner packets written.
    pub bytes_written: u64,
    /// System calls that wrote packets.
    pub writes: u64,
}

/// The outcome of one [`Tun::write_batch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Accepted by the kernel.
    pub written: usize,
    /// Discarded because the kernel had no room.
    pub full: usize,
    /// Discarded because the kernel refused them: not an IP packet, or the interface is down.
    pub refused: usize,
}

impl Tun {
    /// Creates the interface in the thread's network namespace, up; warns and goes on without IPv6.
    pub fn open(options: &TunOptions) -> Result<Self, DeviceError> {
        let fd = open_device(&options.name)?;
        let flags = flags(options.offload);
        let name = attach(&fd, &options.name, flags)?;
        Self::set_up(fd, name, options)
    }

    /// Creates the interface with `count` queues, each with its own handle. The kernel hands a
    /// flow's packets to the queue that last sent a packet of its other direction.
    pub fn open_queues(options: &TunOptions, count: u16) -> Result<Vec<Self>, DeviceError> {
        let fd = open_device(&options.name)?;
        let flags = flags(options.offload) | IFF_MULTI_QUEUE;
        // Not a further queue of another program's interface.
        let name = attach(&fd, &options.name, flags | IFF_TUN_EXCL)?;
        let mut queues = vec![Self::set_up(fd, name, options)?];
        for _ in 1..count {
            let first = &queues[0];
            let fd = open_device(&first.name)?;
            attach(&fd, &first.name, flags)?;
            queues.push(first.with_handle(fd));
        }
        Ok(queues)
    }

    /// Another handle of the same queue, with its own counters.
    pub fn try_clone(&self) -> Result<Self, DeviceError> {
        let failed = |error| DeviceError::system(format!("share the TUN {}", self.name), error);
        Ok(self.with_handle(self.fd.try_clone().map_err(failed)?))
    }

    fn with_handle(&self, fd: OwnedFd) -> Self {
        Self::new(fd, self.name.clone(), self.index, self.mtu, self.offload)
    }

    fn new(fd: OwnedFd, name: String, index: u32, mtu: u16, offload: Offload) -> Self {
        Self {
            fd,
            name,
            index,
            mtu,
            offload,
            buffer: vec![0; HEADER_LEN + PACKET_MAX],
            coalescer: Coalescer::new(offload == Offload::TcpAndUdp),
            statistics: TunStatistics::default(),
        }
    }

    fn set_up(fd: OwnedFd, name: String, options: &TunOptions) -> Result<Self, DeviceError> {
        let offload = if options.offload { set_offload(&fd)? } else { Offload::Off };

        let mut netlink = Netlink::open()?;
        let index = netlink.link(&name)?.index;
        keep_link_out(&name);
        netlink.set_link(index, true, Some(u32::from(options.mtu)))?;
        add_addresses(&mut netlink, index, &options.addresses)?;
        Ok(Self::new(fd, name, index, options.mtu, offload))
    }

    /// Renames the interface back if another program renamed it; returns the printable foreign
    /// name. It is up afterwards; its routes and IPv6 addresses are gone and have to be set again.
    pub fn mend_name(&self) -> Result<Option<String>, DeviceError> {
        let found = present_name(&self.fd)
            .map_err(|error| DeviceError::system("ask for the TUN's name", error))?;
        if found == self.name.as_bytes() {
            return Ok(None);
        }
        Netlink::open()?.rename_link(self.index, &self.name)?;
        Ok(Some(peer_text(&found)))
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's number for the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Largest inner packet, bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Whether TCP, and whether UDP, crosses in super packets.
    pub fn offload(&self) -> (bool, bool) {
        (self.offload != Offload::Off, self.offload == Offload::TcpAndUdp)
    }

    /// Counters since it was opened.
    pub fn statistics(&self) -> TunStatistics {
        self.statistics
    }

    /// How often a turn of a loop should read at most.
    pub const READS_MAX: usize = 32;

    /// Reads waiting packets, in at most `reads` calls, and passes each inner packet to `sink`.
    ///
    /// Packets have 1 byte to the MTU and complete checksums. Returns their number; more may wait
    /// after a full batch. Fails if the interface was removed or set down.
    pub fn read_batch(&mut self, reads: usize, mut sink: impl FnMut(&[u8])) -> io::Result<usize> {
        let mut count = 0;
        for _ in 0..reads {
            let length = match rustix::io::read(&self.fd, &mut self.buffer[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            };
            self.statistics.reads += 1;
            let packet = &mut self.buffer[..length];
            let bytes = &mut self.statistics.bytes_read;
            let result = if self.offload == Offload::Off {
                *bytes += packet.len() as u64;
                sink(packet);
                Some(1)
            } else {
                read_super(packet, |packet| {
                    *bytes += packet.len() as u64;
                    sink(packet);
                })
            };
            match result {
                Some(packets) => {
                    count += packets;
                    self.statistics.packets_read += packets as u64;
                }
                None => self.statistics.malformed += 1,
            }
        }
        Ok(count)
    }

    /// Writes inner packets; runs of one TCP or UDP flow cross as super packets. Order is kept
    /// within each flow, and nothing is held back for a later call.
    pub fn write_batch<P: AsRef<[u8]>>(
        &mut self,
        packets: impl IntoIterator<Item = P>,
    ) -> WriteCounts {
        let mut counts = WriteCounts::default();
        let (fd, statistics) = (&self.fd, &mut self.statistics);
        let header = if self.offload == Offload::Off { 0 } else { HEADER_LEN };
        let mut write = |bytes: &[u8], packets: usize| {
            statistics.writes += 1;
            match rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes)) {
                Ok(_) => {
                    counts.written += packets;
                    statistics.packets_written += packets as u64;
                    statistics.bytes_written += (bytes.len() - header) as u64;
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => counts.full += packets,
                Err(_) => counts.refused += packets,
            }
        };
        for packet in packets {
            match self.offload {
                Offload::Off => write(packet.as_ref(), 1),
                _ => self.coalescer.push(packet.as_ref(), &mut write),
            }
        }
        self.coalescer.flush(&mut write);
        counts
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn read_super(bytes: &mut [u8], sink: impl FnMut(&[u8])) -> Option<usize> {
    let (header, packet) = bytes.split_first_chunk_mut::<HEADER_LEN>()?;
    let header = Header::decode(header)?;
    split(&header, packet, sink).ok()
}

fn add_addresses(
    netlink: &mut Netlink,
    index: u32,
    addresses: &[IpNet],
) -> Result<(), DeviceError> {
    for prefix in addresses {
        match netlink.add_address(index, *prefix) {
            Err(error @ DeviceError::NoIpv6 { .. }) => tracing::warn!("{error}"),
            result => result?,
        }
    }
    Ok(())
}

/// Disables link-local addresses, unused, and router advertisements and redirects of the other end.
fn keep_link_out(name: &str) {
    // An addr_gen_mode of 1 means none (Linux Documentation/networking/ip-sysctl.rst).
    let settings =
        [("addr_gen_mode", "1"), ("accept_ra", "0"), ("accept_redirects", "0"), ("autoconf", "0")];
    for (setting, value) in settings {
        let key = format!("net.ipv6.conf.{}.{setting}", name.replace('.', "/"));
        // A kernel without IPv6 has no such key.
        let is_other = sysctl::read(&key).is_ok_and(|now| now != value);
        if is_other && let Err(error) = sysctl::write(&key, value) {
            tracing::warn!("{error}");
        }
    }
}

fn open_device(name: &str) -> Result<OwnedFd, DeviceError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => DeviceError::NoTunDevice,
        Errno::ACCESS => DeviceError::Unavailable {
            why: format!(
                "permission denied to open {DEVICE} for the TUN {name}: chmod 666 {DEVICE}, as udev \
                 does, or run as root"
            ),
        },
        error => DeviceError::system(format!("open {DEVICE} for the TUN {name}"), error),
    })
}

fn flags(offload: bool) -> u16 {
    IFF_TUN | IFF_NO_PI | if offload { IFF_VNET_HDR } else { 0 }
}

fn attach(fd: &OwnedFd, name: &str, flags: u16) -> Result<String, DeviceError> {
    let bad_name = || DeviceError::BadName { name: name.to_owned() };
    let fits = (1..INTERFACE_NAME).contains(&name.len());
    if !fits || name.contains(|c: char| c.is_whitespace() || "/:\0".contains(c)) {
        return Err(bad_name());
    }
    let mut request = InterfaceRequest { name: [0; INTERFACE_NAME], flags, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, as which `InterfaceRequest` is laid
    // out: a name of 16 bytes and a union of at most 24, both of plain integers.
    let result = unsafe { ioctl::ioctl(fd, Updater::<TUNSETIFF, _>::new(&mut request)) };
    result.map_err(|error| match error {
        Errno::BUSY | Errno::EXIST => DeviceError::NameInUse { name: name.to_owned() },
        // Another kind of interface has the name, or the name is invalid.
        Errno::INVAL if Netlink::open().and_then(|mut netlink| netlink.link(name)).is_ok() => {
            DeviceError::NameInUse { name: name.to_owned() }
        }
        Errno::INVAL => bad_name(),
        error => DeviceError::system(format!("make the TUN {name}"), error),
    })?;
    Ok(String::from_utf8_lossy(request.name()).into_owned())
}

fn present_name(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    // SAFETY: TUNGETIFF writes one `struct ifreq`, as which `InterfaceRequest` is laid out, and
    // every bit pattern is a value of its integers.
    let request = unsafe { ioctl::ioctl(fd, Getter::<TUNGETIFF, InterfaceRequest>::new()) }?;
    Ok(request.name().to_vec())
}

fn set_offload(fd: &OwnedFd) -> Result<Offload, DeviceError> {
    // SAFETY: TUNSETVNETHDRSZ reads one `int`.
    unsafe { ioctl::ioctl(fd, Setter::<TUNSETVNETHDRSZ, i32>::new(HEADER_LEN as i32)) }
        .map_err(|error| DeviceError::system("set the TUN's header size", error))?;
    let set = |flags: usize| {
        // SAFETY: TUNSETOFFLOAD takes its flags as an integer, not as a pointer.
        unsafe { ioctl::ioctl(fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags)) }
    };
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    if set(tcp | TUN_F_USO4 | TUN_F_USO6).is_ok() {
        return Ok(Offload::TcpAndUdp);
    }
    set(tcp).map_err(|error| DeviceError::system("set the TUN's offload", error))?;
    Ok(Offload::Tcp)
}

#[repr(C)]
struct InterfaceRequest {
    name: [u8; INTERFACE_NAME],
    flags: u16,
    rest: [u8; 22],
}

impl InterfaceRequest {
    fn name(&self) -> &[u8] {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(INTERFACE_NAME);
        &self.name[..length]
    }
}

const DEVICE: &str = "/dev/net/tun";
const INTERFACE_NAME: usize = 16;

const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const TUNGETIFF: Opcode = opcode::read::<u32>(b'T', 210);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<i32>(b'T', 216);
const IFF_TUN: u16 = 0x0001;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_TUN_EXCL: u16 = 0x8000;
const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;
const TUN_F_USO4: usize = 0x20;
const TUN_F_USO6: usize = 0x40;
