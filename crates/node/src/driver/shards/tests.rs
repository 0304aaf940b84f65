//! Two shards in their threads, with sockets and device queues in a namespace.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use roadweave_identity::Identity;
use roadweave_linux::netns::{NetNs, WAIT_MAX, run_sandboxed, wait_until};
use roadweave_linux::{Clock, TunOptions, UdpOptions, Waker};
use roadweave_quic::TransportConfig;
use roadweave_tunnel::{PeerTable, ServerConfig};

use super::*;
use crate::status::StreamsStatus;

struct World {
    front: Front,
    slots: Vec<Arc<ShardSlot>>,
    map: ShardMap,
    client: UdpSocket,
}

impl World {
    fn new() -> Self {
        let machine = NetNs::create("machine").expect("a namespace");
        machine.ip("link set lo up").expect("up");
        let map = ShardMap::new(2, &[1; 32]);
        let tun = TunOptions {
            name: "rws".to_owned(),
            mtu: 1_360,
            addresses: vec!["10.77.0.1/24".parse().expect("a network")],
            offload: false,
        };
        let open = || {
            let address = "127.0.0.1:4433".parse().expect("an address");
            let sockets = group::open_group(&UdpOptions::server(address), &map);
            let tuns = Tun::open_queues(&tun, map.count());
            let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            client.connect(address).expect("connected");
            client.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
            (sockets.expect("sockets"), tuns.expect("queues"), client)
        };
        let (sockets, tuns, client) = machine.enter(open).expect("entered");
        let transport = TransportConfig::new([2; 32]);
        let config = ServerConfig::new(transport, tun.addresses.clone());
        let (events, happened) = sync_channel(EVENTS_MAX);
        let common = Arc::new(Common {
            map,
            clock: Clock::start(),
            identity: Arc::new(Identity::from_seed([3; 32])),
            peers: Arc::new(PeerTable::new([])),
            kept: SharedState::default(),
            exchange: ShardExchange::new(map.count()).expect("descriptors"),
            standing: Mutex::new(Standing {
                config: config.of_shard(map.count()),
                far_ends: None,
                destinations: Arc::default(),
                drains: Vec::new(),
            }),
            events,
            waker: Waker::new().expect("a descriptor"),
            ends: AtomicBool::new(false),
        });
        let (slots, commands) = slots(&common, sockets, tuns);
        let mut front = Front::new(common, slots.clone(), happened);
        front.begin(commands).expect("threads");
        Self { front, slots, map, client }
    }

    fn resets(&self, shard: u16) -> bool {
        let id = (0_u64..).map(u64::to_be_bytes).find(|id| self.map.of_id(id) == shard);
        let packet = [&[0x40][..], &id.expect("one"), &[7; 91]].concat();
        self.client.send(&packet).expect("sent");
        self.client.recv(&mut [0; 1_500]).is_ok_and(|length| length < packet.len())
    }
}

#[test]
#[allow(clippy::panic, reason = "it is what is tested")]
fn a_shard_that_panics_is_restarted_and_answers_its_former_clients_by_resets() {
    run_sandboxed(|| {
        let mut world = World::new();
        for round in 1..=3 {
            world.slots[1].note_streams(StreamsStatus { connections: 2, ..Default::default() });
            world.slots[1].command(Box::new(|_| panic!("a fault")));
            wait_until("failed", || world.slots[1].failures.load(Ordering::Relaxed) == round);
            for shard in [0, 1] {
                wait_until("answered", || world.resets(shard));
            }
            let (_, status) = world.front.gather(false);
            let shards: Vec<_> = status.shards.iter().map(|it| (it.runs, it.failures)).collect();
            assert_eq!(shards, [(true, 0), (true, round)]);
            let streams = world.slots[1].streams();
            assert_eq!((streams.connections, streams.ends["reset"]), (0, 2 * round));
        }
        world.front.stop();
    });
}

#[test]
fn turns_are_missing_while_one_shard_stands_still() {
    run_sandboxed(|| {
        let mut world = World::new();
        for round in 0..2 {
            wait_until("all turn", || world.front.take_turns());
            let ((began, begins), (wakes, sleeps)) = (channel(), channel::<()>());
            world.slots[round].command(Box::new(move |_| {
                began.send(()).expect("heard");
                let _ = sleeps.recv();
            }));
            begins.recv_timeout(WAIT_MAX).expect("it stands still");
            world.slots.iter().for_each(|slot| slot.forget_turn());
            wait_until("the other turns", || world.slots[1 - round].has_turned());
            for _ in 0..20 {
                assert!(!world.front.take_turns(), "shard {round} stands still");
                std::thread::sleep(Duration::from_millis(100));
            }
            drop(wakes);
            wait_until("all turn again", || world.front.take_turns());
        }
        world.front.stop();
    });
}
