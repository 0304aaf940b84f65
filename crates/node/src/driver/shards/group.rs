//! A server's shards' sockets: a group at one address, with a BPF program that finds a packet's
//! socket by the hash of its connection ID. The kernel gives a closed socket's number to the last,
//! so all stay open. The program starts at the payload of UDP; a load beyond its end returns 0.

use libc::sock_filter;
use roadweave_linux::{DeviceError, UdpOptions, UplinkSocket};
use roadweave_quic::ShardMap;

pub(in crate::driver) fn open_group(
    options: &UdpOptions,
    map: &ShardMap,
) -> Result<Vec<UplinkSocket>, DeviceError> {
    UplinkSocket::open_group(options, map.count(), &program(map))
}

fn program(map: &ShardMap) -> Vec<sock_filter> {
    let [mask, one, two, three] = map.key();
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let step = |code, k| jump(code, k, 0, 0);
    // The offset of the ID: after the first byte, or after version and length too.
    let mut steps = vec![
        step(LOAD_BYTE, 0),
        jump(JUMP_IF_SET, 0x80, 0, 5),
        step(LOAD_BYTE, 5),
        jump(JUMP_IF_NOT_LESS, 8, 1, 0),
        step(RETURN, 0),
        step(LOAD_X, 6),
        step(JUMP, 1),
        step(LOAD_X, 1),
        // The last half is kept, and the first half is hashed first.
        step(LOAD_WORD_AT_X, 4),
        step(STORE, 0),
        step(LOAD_WORD_AT_X, 0),
        step(XOR, mask),
        step(MULTIPLY, one),
    ];
    let fold = |by| [step(COPY_TO_X, 0), step(SHIFT_RIGHT, by), step(XOR_X, 0)];
    steps.extend(fold(16));
    steps.extend([step(RELOAD_X, 0), step(ADD_X, 0), step(MULTIPLY, two)]);
    steps.extend(fold(15));
    steps.push(step(MULTIPLY, three));
    steps.extend(fold(16));
    steps.extend([step(MODULO, map.count().into()), step(RETURN_A, 0)]);
    steps
}

// The codes of `linux/bpf_common.h`.
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_WORD_AT_X: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_IND) as u16;
const LOAD_X: u16 = (libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM) as u16;
const RELOAD_X: u16 = (libc::BPF_LDX | libc::BPF_W | libc::BPF_MEM) as u16;
const STORE: u16 = libc::BPF_ST as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP_IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const XOR: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_K) as u16;
const XOR_X: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
const ADD_X: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const COPY_TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use roadweave_linux::wait_readable;

    use super::*;

    const COUNT: u16 = 5;

    fn group(address: &str) -> (ShardMap, Vec<UplinkSocket>) {
        let map = ShardMap::new(COUNT, &[9; 32]);
        let options = UdpOptions::server(address.parse().expect("an address"));
        (map, open_group(&options, &map).expect("loopback"))
    }

    fn received(sockets: &mut [UplinkSocket]) -> (u16, Vec<Vec<u8>>) {
        let mut all = Vec::new();
        for (number, socket) in (0..).zip(sockets) {
            let mut packets = Vec::new();
            socket.recv(|incoming| packets.push(incoming.payload.to_vec())).expect("alive");
            if !packets.is_empty() {
                all.push((number, packets));
            }
        }
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn packet(seed: u64) -> Vec<u8> {
        let noise = |n: u64| (seed ^ n << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let mut bytes: Vec<u8> = (0..6).flat_map(noise).collect();
        match seed % 4 {
            0 => bytes[0] &= 0x7f,
            1 => (bytes[0], bytes[5]) = (bytes[0] | 0x80, 8 + bytes[5] % 13),
            2 => bytes[0] |= 0x80,
            _ => bytes.truncate(1 + usize::from(bytes[1]) % 15),
        }
        bytes
    }

    #[test]
    fn the_kernel_finds_the_shard_of_any_packet_from_any_port() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let (map, mut sockets) = group(address);
            let port = sockets[0].local_address().port();
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let mut hits = [0; COUNT as usize];
            for seed in 0..1_200_u64 {
                let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
                let packet = packet(seed);
                sender.send_to(&packet, to).expect("sent");
                let owner = map.shard_of(&packet);
                let socket = &sockets[usize::from(owner)];
                assert!(
                    wait_readable(socket, Duration::from_secs(20)).expect("waits"),
                    "{packet:?} is not at {owner}"
                );
                assert_eq!(received(&mut sockets), (owner, vec![packet.clone()]), "{packet:?}");
                hits[usize::from(owner)] += 1;
            }
            assert!(hits.iter().all(|hits| *hits > 100), "{hits:?}");
        }
    }

    #[test]
    fn a_bound_address_is_not_shared_and_a_group_admits_no_other_socket() {
        let (map, sockets) = group("127.0.0.1:0");
        let options = UdpOptions::server(sockets[0].local_address());
        let group = open_group(&options, &map).expect_err("it is taken");
        for refused in [group, UplinkSocket::open(&options).expect_err("it is taken")] {
            assert!(matches!(refused, DeviceError::AddressInUse { .. }), "{refused}");
        }
    }

    #[test]
    fn a_shard_whose_handle_is_closed_keeps_its_place() {
        let (map, mut sockets) = group("127.0.0.1:0");
        let to = sockets[0].local_address();
        let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        for round in 0..COUNT {
            let clone = sockets[usize::from(round)].try_clone().expect("a descriptor");
            drop(std::mem::replace(&mut sockets[usize::from(round)], clone));
            for seed in 0..40 {
                let packet = packet(4 * seed);
                sender.send_to(&packet, to).expect("sent");
                let owner = map.shard_of(&packet);
                let socket = &sockets[usize::from(owner)];
                assert!(wait_readable(socket, Duration::from_secs(20)).expect("waits"));
                assert_eq!(received(&mut sockets).0, owner);
            }
        }
    }
}
