//! Receives many datagrams with one call, including all control messages: time, GRO run, addresses,
//! ECN. `noq-udp` has 96 bytes for control messages, which is too few.

#![allow(unsafe_code, reason = "no crate at hand receives batches with control messages")]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use libc::{c_int, cmsghdr, mmsghdr, sockaddr_storage, socklen_t};
use socket2::{SockAddr, SockAddrStorage, Socket};

/// The longest control messages of a slot take 120: time 32, run 24, address 40, ECN 24.
const CONTROL: usize = 192;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceivedMessage {
    pub(super) remote: Option<SocketAddr>,
    pub(super) len: usize,
    /// Bytes of each datagram of a run but the last; the whole length for a single one.
    pub(super) stride: usize,
    pub(super) local: Option<IpAddr>,
    pub(super) interface: Option<u32>,
    pub(super) ecn: u8,
    /// The kernel's time stamp, since 1970; of a run, its first datagram's.
    pub(super) stamp: Option<Duration>,
}

type Control = [MaybeUninit<u64>; CONTROL / size_of::<u64>()];

/// Fills slots of `slot_bytes` bytes of `buffers`; returns a message for each slot. Fails as
/// `recvmmsg` does, with [`io::ErrorKind::WouldBlock`] if no datagram waits.
pub(super) fn receive<const SLOTS: usize>(
    socket: &Socket,
    buffers: &mut [u8],
    slot_bytes: usize,
) -> io::Result<impl Iterator<Item = ReceivedMessage> + use<SLOTS>> {
    // SAFETY: all three are plain integers and pointers, for which zeros are valid.
    let mut headers: [mmsghdr; SLOTS] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut names: [sockaddr_storage; SLOTS] = unsafe { zeroed() };
    let mut controls: [Control; SLOTS] = [[MaybeUninit::uninit(); _]; SLOTS];
    // SAFETY: as above.
    let mut vectors: [libc::iovec; SLOTS] = unsafe { zeroed() };
    let mut slots = 0;
    for (index, buffer) in buffers.chunks_exact_mut(slot_bytes).take(SLOTS).enumerate() {
        vectors[index].iov_base = buffer.as_mut_ptr().cast();
        vectors[index].iov_len = buffer.len();
        let header = &mut headers[index].msg_hdr;
        header.msg_name = (&raw mut names[index]).cast();
        header.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
        header.msg_iov = &raw mut vectors[index];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut controls[index]).cast();
        header.msg_controllen = CONTROL as _;
        slots = index + 1;
    }
    // SAFETY: the first `slots` headers point, with the right lengths, to buffers, names, vectors
    // and control messages that outlive the call. The socket does not block.
    let filled = unsafe {
        let none = ptr::null_mut();
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), slots as _, 0, none)
    };
    let filled = usize::try_from(filled).map_err(|_| io::Error::last_os_error())?;
    let mut messages = [ReceivedMessage::default(); SLOTS];
    for ((message, header), name) in messages.iter_mut().zip(&headers).zip(&names).take(filled) {
        message.len = header.msg_len as usize;
        message.stride = message.len;
        message.remote = address(name, header.msg_hdr.msg_namelen);
        // SAFETY: the kernel has filled the header, whose control messages still live.
        unsafe { read_control(&header.msg_hdr, message) };
    }
    Ok(messages.into_iter().take(filled))
}

fn address(name: &sockaddr_storage, length: socklen_t) -> Option<SocketAddr> {
    // SAFETY: both are the same structure of the system.
    let storage = unsafe { ptr::from_ref(name).cast::<SockAddrStorage>().read() };
    // SAFETY: the kernel wrote an address of this length.
    unsafe { SockAddr::new(storage, length) }.as_socket()
}

/// # Safety
/// `header` must be one that a receive has filled, and what it points to must live.
unsafe fn read_control(header: &libc::msghdr, message: &mut ReceivedMessage) {
    // SAFETY: the caller promises it for the first; the system finds the next within its bytes.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            read_one(control, message);
            next = libc::CMSG_NXTHDR(header, control);
        }
    }
}

/// # Safety
/// As [`read_control`]; `control` must be one of its control messages.
unsafe fn read_one(control: &cmsghdr, message: &mut ReceivedMessage) {
    // SAFETY: the bytes of `control` live, as the caller promises; `payload` looks at no others.
    unsafe {
        match (control.cmsg_level, control.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                message.stamp = payload::<libc::timespec>(control).and_then(since_1970);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let stride = payload::<c_int>(control).and_then(|it| usize::try_from(it).ok());
                message.stride = stride.unwrap_or(message.stride);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                message.ecn = payload::<u8>(control).unwrap_or_default();
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                message.ecn = payload::<c_int>(control).unwrap_or_default() as u8;
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(info) = payload::<libc::in_pktinfo>(control) {
                    message.local = Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                    message.interface = u32::try_from(info.ipi_ifindex).ok();
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = payload::<libc::in6_pktinfo>(control) {
                    message.local = Some(IpAddr::from(info.ipi6_addr.s6_addr));
                    message.interface = Some(info.ipi6_ifindex);
                }
            }
            _ => {}
        }
    }
}

/// The value of a control message, if it is long enough.
///
/// # Safety
/// The bytes that `control` describes must live, and any bytes must be a valid `T`.
#[allow(clippy::unnecessary_cast, reason = "the length's type differs from libc to libc")]
unsafe fn payload<T: Copy>(control: &cmsghdr) -> Option<T> {
    // SAFETY: it computes a length.
    let least = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as usize;
    // SAFETY: there are as many bytes as a `T` has, which the caller promises to be one.
    let value = || unsafe { libc::CMSG_DATA(control).cast::<T>().read_unaligned() };
    (control.cmsg_len as usize >= least).then(value)
}

fn since_1970(time: libc::timespec) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    Some(Duration::new(seconds, nanos))
}
