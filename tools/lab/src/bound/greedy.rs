//! The clairvoyant scheduler: each packet, in order, on the path of its earliest arrival.
//!
//! It knows the future of the links. It holds a packet back when the link carries it better later:
//! after loss, or after a spike of delay. It sends no duplicates and drops nothing. On insufficient
//! links other schedules reach more of some figures by dropping packets.

use std::time::Duration;

use roadweave_emulate::{Trace, Transmitter};
use roadweave_proto::Instant;

use super::slots::begins;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub link: usize,
    pub at: Instant,
    pub arrives: Instant,
}

/// Schedules packets of (release, bytes), ascending by release, on `links`, whose traces start at
/// `origin`. `None` for a packet that no link ever carries.
pub(super) fn schedule(
    links: &[&Trace],
    origin: Instant,
    packets: impl Iterator<Item = (Instant, usize)>,
    horizon: Duration,
) -> Vec<Option<Choice>> {
    let mut lanes: Vec<Lane<'_>> =
        links.iter().map(|trace| Lane::new(trace, origin, horizon)).collect();
    packets
        .map(|(released, bytes)| {
            let mut best: Option<(usize, Offer)> = None;
            for (index, lane) in lanes.iter().enumerate() {
                let limit = best.as_ref().map_or(Instant::FAR_FUTURE, |best| best.1.arrives);
                if let Some(offer) = lane.offer(released, bytes, limit) {
                    best = Some((index, offer));
                }
            }
            let (link, offer) = best?;
            let choice = Choice { link, at: offer.at, arrives: offer.arrives };
            lanes[link].take(offer);
            Some(choice)
        })
        .collect()
}

struct Lane<'a> {
    trace: &'a Trace,
    origin: Instant,
    transmitter: Transmitter,
    handed_over: Instant,
    last_arrival: Instant,
    improvements: Vec<Instant>,
}

struct Offer {
    at: Instant,
    arrives: Instant,
    transmitter: Transmitter,
}

impl<'a> Lane<'a> {
    fn new(trace: &'a Trace, origin: Instant, horizon: Duration) -> Self {
        Self {
            trace,
            origin,
            transmitter: Transmitter::new(trace.capacity().clone(), origin),
            handed_over: Instant::ZERO,
            last_arrival: Instant::ZERO,
            improvements: improvements(trace, origin, horizon),
        }
    }

    fn offer(&self, released: Instant, bytes: usize, limit: Instant) -> Option<Offer> {
        let released = released.max(self.handed_over);
        let later = self.improvements.partition_point(|&at| at <= released);
        let mut best: Option<Offer> = None;
        let mut limit = limit;
        for &at in std::iter::once(&released).chain(&self.improvements[later..]) {
            if at >= limit {
                break;
            }
            let mut transmitter = self.transmitter.clone();
            let departs = transmitter.transmit(at, bytes);
            let Some(arrives) = self.arrival(departs).filter(|&arrives| arrives < limit) else {
                continue;
            };
            limit = arrives;
            best = Some(Offer { at, arrives, transmitter });
        }
        best
    }

    fn arrival(&self, departs: Instant) -> Option<Instant> {
        let since = departs.since(self.origin);
        let arrives = departs != Instant::FAR_FUTURE && self.trace.loss().at(since) < 1.0;
        arrives.then(|| self.last_arrival.max(departs + self.trace.delay().at(since)))
    }

    fn take(&mut self, offer: Offer) {
        self.transmitter = offer.transmitter;
        self.handed_over = offer.at;
        self.last_arrival = offer.arrives;
    }
}

fn improvements(trace: &Trace, origin: Instant, horizon: Duration) -> Vec<Instant> {
    let mut changes = begins(trace.delay(), horizon);
    changes.extend(begins(trace.loss(), horizon));
    changes.sort_unstable();
    changes.dedup();
    let state = |at: Duration| (trace.loss().at(at) >= 1.0, trace.delay().at(at));
    let better = |pair: &[Duration]| {
        let ((lost_before, delay_before), (lost, delay)) = (state(pair[0]), state(pair[1]));
        !lost && (lost_before || delay < delay_before)
    };
    let pairs = changes.windows(2).filter(|pair| better(pair));
    pairs.map(|pair| origin + pair[1]).collect()
}
