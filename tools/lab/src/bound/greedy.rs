//! The clairvoyant scheduler: each packet, in order, on the path of its earliest arrival.
//!
//! It knows the links' future. It keeps a packet back when the link carries it better a moment
//! later: it waits out loss, and a spike of delay that what is sent after it overtakes. It sends
//! nothing twice and drops nothing. What it reaches can be reached; on links that do not suffice
//! for the stream, others reach more of some figures by leaving packets out.

use std::time::Duration;

use roadweave_emulate::{Trace, Transmitter};
use roadweave_proto::Instant;

use super::slots::begins;

/// What the scheduler does with one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The link's number.
    pub link: usize,
    /// When it is handed to the link.
    pub at: Instant,
    /// When the packet arrives.
    pub arrives: Instant,
}

/// Schedules packets of (time of release, bytes), ascending by release, on `links`, whose traces
/// start at `origin`. `None` for what no link ever carries.
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

/// A link and what is on it.
struct Lane<'a> {
    trace: &'a Trace,
    origin: Instant,
    transmitter: Transmitter,
    handed_over: Instant,
    last_arrival: Instant,
    /// When the link becomes better: loss ends, or the delay falls. Ascending.
    improvements: Vec<Instant>,
}

/// How a link would carry a packet.
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

    /// The earliest arrival of a packet, if it is earlier than `limit`.
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
