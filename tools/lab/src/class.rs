//! How hard a drive is for a stream.
//!
//! ```text
//!   per 100 ms and link: capacity, or none while packets are lost or the delay is above 80 ms;
//!   each the mean of three, so that a pause of 100 ms does not count
//!     one link enough, 99 % of the time ──> easy      the sum, 98 % of the time ──> decisive
//!     the sum, 90 % of the time         ──> tight     less                      ──> starved
//! ```
//!
//! A bond is worth the most on decisive drives: no link alone suffices, all together do.

use std::fmt;
use std::time::Duration;

use roadweave_emulate::{Capacity, Trace};
use roadweave_proto::Rate;

roadweave_proto::named! {
    /// How hard a drive is for a stream of a given rate.
    Class {
        /// One link suffices.
        Easy = "easy",
        /// The links suffice together, but no link alone.
        Decisive = "decisive",
        /// The links suffice together 90 % of the time.
        Tight = "tight",
        /// The links suffice together less than 90 % of the time.
        Starved = "starved",
    }
}

impl Class {
    /// The class of `links`, in the stream's direction, for a stream of `bitrate` and `duration`.
    pub fn of(links: &[&Trace], bitrate: Rate, duration: Duration) -> Self {
        let usable: Vec<Vec<f64>> = links.iter().map(|trace| usable(trace, duration)).collect();
        let steps = usable.first().map_or(0, Vec::len);
        let wanted = bitrate.as_bps() as f64;
        let share = |enough: &dyn Fn(usize) -> bool| {
            (0..steps).filter(|&step| enough(step)).count() as f64 / steps.max(1) as f64
        };
        let alone = usable.iter().map(|link| share(&|step| link[step] >= wanted));
        let together = share(&|step| usable.iter().map(|link| link[step]).sum::<f64>() >= wanted);
        if alone.fold(0.0, f64::max) > ALONE {
            Self::Easy
        } else if together > DECISIVE {
            Self::Decisive
        } else if together > TIGHT {
            Self::Tight
        } else {
            Self::Starved
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn usable(trace: &Trace, duration: Duration) -> Vec<f64> {
    let steps = duration.as_nanos().div_ceil(STEP.as_nanos()) as u32;
    let mut rates: Vec<f64> = match &**trace.capacity() {
        Capacity::Rates(rates) => {
            (0..steps).map(|step| rates.at(STEP * step).as_bps() as f64).collect()
        }
        Capacity::Opportunities(opportunities) => {
            let mut bits = vec![0.0; steps as usize];
            for (at, bytes) in opportunities.until(duration) {
                if let Some(bits) = bits.get_mut((at.as_nanos() / STEP.as_nanos()) as usize) {
                    *bits += bytes as f64 * 8.0;
                }
            }
            bits.iter().map(|bits| bits / STEP.as_secs_f64()).collect()
        }
    };
    for (rate, step) in rates.iter_mut().zip(0..) {
        let at = STEP * step;
        if trace.loss().at(at) > 0.0 || trace.delay().at(at) > DELAY_MAX {
            *rate = 0.0;
        }
    }
    let around = |step: usize| {
        let around = &rates[step.saturating_sub(1)..rates.len().min(step + 2)];
        around.iter().sum::<f64>() / around.len() as f64
    };
    (0..rates.len()).map(around).collect()
}

const STEP: Duration = Duration::from_millis(100);
/// Links with a higher one-way delay are useless to a live stream.
const DELAY_MAX: Duration = Duration::from_millis(80);
const ALONE: f64 = 0.99;
/// Share of time in which all links together suffice on a decisive and on a tight drive.
const DECISIVE: f64 = 0.98;
const TIGHT: f64 = 0.90;

#[cfg(test)]
mod tests {
    use roadweave_emulate::{AtEnd, Opportunities, Timeline};

    use super::*;

    /// Mbit/s in each of ten seconds.
    fn link(mbps: [u64; 10]) -> Trace {
        let steps = (0_u32..).zip(mbps).map(|(second, mbps)| {
            (Duration::from_secs(second.into()), Rate::from_kbps(mbps * 1_000))
        });
        let rates = Timeline::new(steps, Duration::from_secs(10), AtEnd::Repeat).unwrap();
        Trace::constant(Rate::ZERO, Duration::from_millis(20)).with_capacity(Capacity::Rates(rates))
    }

    fn check(links: &[&Trace], expected: Class) {
        let class = Class::of(links, Rate::from_kbps(30_000), Duration::from_secs(10));
        assert_eq!(class, expected);
    }

    #[test]
    fn classes_go_by_what_links_carry_alone_and_together() {
        let (strong, half, gap) =
            (link([40; 10]), link([20; 10]), [0, 40, 40, 40, 40, 40, 40, 40, 40, 40]);
        check(&[&strong], Class::Easy);
        check(&[&half, &strong], Class::Easy);
        check(&[&half, &half], Class::Decisive);
        check(&[&link(gap), &half], Class::Tight);
        check(&[&half], Class::Starved);
        check(&[], Class::Starved);
    }

    #[test]
    fn a_link_is_of_no_use_while_it_loses_packets_or_is_slow() {
        let strong = link([40; 10]);
        let late = Timeline::constant(Duration::from_millis(81));
        check(&[&strong.with_delay(late)], Class::Starved);
        check(&[&strong.with_loss(Timeline::constant(0.01))], Class::Starved);
    }

    #[test]
    fn delivery_opportunities_have_a_class_too() {
        let every_ms = |times: u32| {
            (1..=10_000).flat_map(move |ms| vec![Duration::from_millis(ms); times as usize])
        };
        let trace = |times| {
            let capacity = Capacity::Opportunities(Opportunities::new(every_ms(times)).unwrap());
            Trace::constant(Rate::ZERO, Duration::ZERO).with_capacity(capacity)
        };
        check(&[&trace(3)], Class::Easy);
        check(&[&trace(2), &trace(1)], Class::Decisive);
    }
}
