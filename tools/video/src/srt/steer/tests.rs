use super::*;

struct Link {
    bps: f64,
    idle_ms: f64,
    queue_bits: f64,
    silent_ms: f64,
    now: Duration,
    steer: Steer,
}

const LEAST: u64 = 500_000;
const MOST: u64 = 6_000_000;

impl Link {
    fn new(bps: f64, idle_ms: f64) -> Self {
        let steer = Steer::new(LEAST, MOST, Duration::from_secs(2));
        Self { bps, idle_ms, queue_bits: 0.0, silent_ms: 0.0, now: Duration::ZERO, steer }
    }

    fn run(&mut self, seconds: u32) -> Vec<f64> {
        let turn = |_| {
            self.now += Duration::from_millis(20);
            let sent = self.steer.bps();
            self.queue_bits = (self.queue_bits + (sent as f64 - self.bps) * 0.02).max(0.0);
            // On a dead link, the round trip is the silence.
            self.silent_ms = if self.bps > 0.0 { 0.0 } else { self.silent_ms + 20.0 };
            let queue_ms = if self.bps > 0.0 { self.queue_bits / self.bps * 1e3 } else { 0.0 };
            let rtt_ms = (self.idle_ms + queue_ms).max(self.silent_ms);
            let sent_bps = sent as f64;
            let flying = sent_bps / 8.0 * self.idle_ms / 1e3 / PACKET_BYTES;
            let unacknowledged = flying + self.queue_bits / 8.0 / PACKET_BYTES;
            let reading = LinkReading { rtt_ms, unacknowledged, sent_bps, dropped: 0 };
            self.steer.on_reading(self.now, Some(reading)) as f64
        };
        (0..seconds * 50).map(turn).collect()
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

#[test]
fn congestion_lowers_the_rate_at_once_and_it_recovers() {
    let mut link = Link::new(20e6, 60.0);
    assert!(link.run(20).iter().all(|bps| *bps == MOST as f64));
    link.bps = 2e6;
    let rates = link.run(20);
    let first = rates.iter().position(|bps| *bps < MOST as f64).unwrap();
    assert!(first <= 10, "after {} ms", first * 20);
    let below = rates.iter().position(|bps| *bps <= 2e6).unwrap();
    assert!(below <= 150, "after {} ms", below * 20);
    assert!((1e6..2.2e6).contains(&mean(&rates[500..])), "{}", mean(&rates[500..]));
    link.bps = 20e6;
    let rates = link.run(30);
    let whole = rates.iter().position(|bps| *bps == MOST as f64).unwrap();
    assert!(whole <= 1250, "after {} ms", whole * 20);
}

#[test]
fn a_dead_link_has_the_least() {
    let mut link = Link::new(20e6, 60.0);
    link.run(10);
    link.bps = 0.0;
    let rates = link.run(3);
    let least = rates.iter().position(|bps| *bps == LEAST as f64).unwrap();
    assert!(least <= 35, "after {} ms", least * 20);
    assert!(rates[least..].iter().all(|bps| *bps == LEAST as f64));
}

#[test]
fn what_came_too_late_to_be_sent_has_the_least() {
    let mut link = Link::new(20e6, 60.0);
    link.run(2);
    let reading =
        |dropped| LinkReading { rtt_ms: 60.0, unacknowledged: 34.0, sent_bps: 6e6, dropped };
    let mut at = |ms, dropped| {
        link.steer.on_reading(link.now + Duration::from_millis(ms), Some(reading(dropped)))
    };
    assert_eq!((at(20, 0), at(40, 1), at(60, 1)), (MOST, LEAST, LEAST));
}

#[test]
fn readings_without_sense_change_nothing_and_then_have_the_least() {
    let sound = LinkReading { rtt_ms: 60.0, unacknowledged: 34.0, sent_bps: 6e6, dropped: 0 };
    let absurd = [
        None,
        Some(LinkReading { rtt_ms: f64::NAN, ..sound }),
        Some(LinkReading { rtt_ms: f64::INFINITY, ..sound }),
        Some(LinkReading { rtt_ms: -1.0, ..sound }),
        Some(LinkReading { unacknowledged: f64::NAN, ..sound }),
        Some(LinkReading { unacknowledged: -5.0, ..sound }),
        Some(LinkReading { unacknowledged: 1e300, ..sound }),
        Some(LinkReading { sent_bps: f64::NAN, ..sound }),
        Some(LinkReading { sent_bps: -1e9, ..sound }),
    ];
    for reading in absurd {
        let mut link = Link::new(20e6, 60.0);
        link.run(2);
        let mut at = |seconds: f64, reading| {
            link.steer.on_reading(link.now + Duration::from_secs_f64(seconds), reading)
        };
        assert_eq!((at(0.02, reading), at(0.9, reading)), (MOST, MOST), "{reading:?}");
        assert_eq!(at(1.1, reading), LEAST, "{reading:?}");
        let after = at(1.2, Some(sound));
        assert!((LEAST..MOST).contains(&after), "{reading:?} {after}");
    }
}

#[test]
fn no_reading_leads_out_of_the_bounds() {
    let mut seed = 7_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f64 / (1 << 24) as f64
    };
    let mut steer = Steer::new(LEAST, MOST, Duration::from_millis(100));
    let mut now = Duration::ZERO;
    for _ in 0..50_000 {
        now +=
            Duration::from_secs_f64(0.02 * random() + if random() < 0.001 { 300.0 } else { 0.0 });
        let reading = LinkReading {
            rtt_ms: 10_f64.powf(random() * 10.0 - 4.0),
            unacknowledged: 10_f64.powf(random() * 8.0 - 2.0),
            sent_bps: 10_f64.powf(random() * 14.0 - 2.0),
            dropped: (random() * 3.0) as u64,
        };
        let bps = steer.on_reading(now, Some(reading));
        assert!((LEAST..=MOST).contains(&bps), "{bps} {reading:?}");
    }
    let backwards = steer.on_reading(Duration::ZERO, None);
    assert!((LEAST..=MOST).contains(&backwards));
}

#[test]
fn the_least_is_never_above_the_most() {
    let mut steer = Steer::new(MOST, LEAST, Duration::from_secs(2));
    let reading = LinkReading { rtt_ms: 5e3, unacknowledged: 9e3, sent_bps: 0.0, dropped: 9 };
    assert_eq!(steer.on_reading(Duration::from_secs(1), Some(reading)), LEAST);
}

#[test]
fn a_round_trip_is_too_long_by_the_latency_that_was_agreed_on() {
    let severe = |agreed: i32| {
        let mut steer = Steer::new(LEAST, MOST, Duration::from_millis(500));
        steer.on_latency(agreed);
        let reading = LinkReading { rtt_ms: 300.0, unacknowledged: 9.0, sent_bps: 6e6, dropped: 0 };
        let _ = steer.on_reading(Duration::from_millis(20), Some(reading));
        steer.on_reading(Duration::from_millis(40), Some(reading)) == LEAST
    };
    assert!(severe(500) && severe(0) && severe(-1) && severe(i32::MAX));
    assert!(!severe(2000));
}
