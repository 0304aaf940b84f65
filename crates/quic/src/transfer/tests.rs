use std::collections::BTreeMap;

use roadweave_proto::Rate;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// The bottleneck between the two ends: packets of the sender wait for capacity, answers do not.
struct Network {
    rate: Rate,
    delay: Duration,
    queue: Duration,
    lost: fn(u64) -> bool,
}

const NETWORK: Network = Network {
    rate: Rate::from_kbps(10_000),
    delay: Duration::from_millis(20),
    queue: MS,
    lost: |_| false,
};

fn config(bytes: Option<u64>) -> TransferConfig {
    TransferConfig { bytes, congestion: CongestionControl::Cubic, payload_max: 1_300, seed: 1 }
}

#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
fn transfer(config: &TransferConfig) -> Transfer {
    Transfer::new(Epoch::new(std::time::Instant::now()), config).unwrap()
}

fn run(transfer: &mut Transfer, network: &Network, end: Instant) {
    let mut on_the_way = BTreeMap::new();
    let (mut number, mut free) = (0, Instant::ZERO);
    let mut now = Instant::ZERO;
    transfer.begin(now);
    loop {
        while let Some((from, packet)) = transfer.poll_transmit(now) {
            assert!(packet.len() <= 1_300);
            number += 1;
            let leaves = match from {
                TransferEnd::Sender if (network.lost)(number) => continue,
                TransferEnd::Sender => {
                    let begins = free.max(now);
                    if begins.since(now) > network.queue {
                        continue;
                    }
                    free = begins + network.rate.time_for(packet.len() as u64);
                    free
                }
                TransferEnd::Receiver => now,
            };
            on_the_way.insert((leaves + network.delay, number), (from, packet));
        }
        let arrival = on_the_way.first_key_value().map(|((at, _), _)| *at);
        let Some(next) = [arrival, transfer.poll_timeout()].into_iter().flatten().min() else {
            return;
        };
        if next > end {
            return;
        }
        now = next.max(now);
        transfer.handle_timeout(now);
        while let Some(entry) = on_the_way.first_entry().filter(|entry| entry.key().0 <= now) {
            let (from, packet) = entry.remove();
            let to = match from {
                TransferEnd::Sender => TransferEnd::Receiver,
                TransferEnd::Receiver => TransferEnd::Sender,
            };
            transfer.handle_packet(now, to, BytesMut::from(&packet[..]));
        }
    }
}

fn outcome(config: &TransferConfig, network: &Network, millis: u64) -> TransferProgress {
    let mut transfer = transfer(config);
    run(&mut transfer, network, Instant::from_millis(millis));
    *transfer.progress()
}

#[test]
fn a_transfer_completes_with_all_its_bytes() {
    let network = Network { queue: MS * 500, ..NETWORK };
    let progress = outcome(&config(Some(1_000_000)), &network, 20_000);
    assert_eq!(progress.received_bytes, 1_000_000);
    // 0.8 s at the link's rate, two round trips and slow start.
    let completed = progress.completed.unwrap().since(Instant::ZERO);
    assert!((MS * 800..MS * 1_300).contains(&completed), "{completed:?}");
    assert_eq!((progress.lost_packets, progress.is_broken), (0, false));
    assert!(progress.smoothed_rtt.is_some_and(|rtt| rtt > MS * 40));
}

#[test]
fn an_endless_transfer_fills_the_link_under_each_congestion_control() {
    for congestion in [CongestionControl::Cubic, CongestionControl::Bbr] {
        let network = Network { queue: MS * 100, ..NETWORK };
        let config = TransferConfig { congestion, ..config(None) };
        let progress = outcome(&config, &network, 10_000);
        let share = progress.received_bytes as f64 / 12_500_000.0;
        assert!((0.85..1.0).contains(&share), "{congestion:?}: {share}");
        assert_eq!(progress.completed, None);
    }
}

#[test]
fn loss_slows_it_down_and_costs_no_byte() {
    let network = Network { queue: MS * 100, lost: |number| number % 50 == 7, ..NETWORK };
    let progress = outcome(&config(Some(2_000_000)), &network, 60_000);
    assert_eq!(progress.received_bytes, 2_000_000);
    assert!(progress.completed.unwrap() > Instant::from_millis(2_500), "{progress:?}");
    assert!(progress.lost_packets > 20 && progress.congestion_events > 5, "{progress:?}");
}

#[test]
fn foreign_packets_do_it_no_harm() {
    let mut transfer = transfer(&config(Some(50_000)));
    for length in [0, 1, 20, 300, 1_300] {
        for end in [TransferEnd::Sender, TransferEnd::Receiver] {
            transfer.handle_packet(Instant::ZERO, end, BytesMut::from(&vec![0xa5; length][..]));
        }
    }
    run(&mut transfer, &Network { queue: MS * 500, ..NETWORK }, Instant::from_millis(9_000));
    assert_eq!(transfer.progress().received_bytes, 50_000);
}

#[test]
fn equal_seeds_give_equal_transfers() {
    let network = Network { queue: MS * 20, ..NETWORK };
    let outcome = || outcome(&config(Some(300_000)), &network, 9_000);
    assert_eq!(outcome(), outcome());
}

#[test]
fn packets_too_small_for_quic_are_refused() {
    let epoch = transfer(&config(None)).epoch;
    let result = Transfer::new(epoch, &TransferConfig { payload_max: 1_199, ..config(None) });
    assert_eq!(result.unwrap_err(), ConfigError::OutOfBounds { field: "payload_max" });
}
