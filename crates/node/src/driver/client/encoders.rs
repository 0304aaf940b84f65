//! Publishes encoder targets to subscribers of the local socket and of HTTP event streams.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_tunnel::{Client, EncoderTarget};
use serde_json::{Value, json};

use crate::driver::event_loop::Driver;
use crate::driver::settings::parse;
use crate::local::{EncoderWord, RpcError, Subscribe, Subscribers};

#[derive(Debug, Default)]
pub(super) struct Encoders {
    published: Option<(Instant, BTreeMap<String, EncoderTarget>)>,
    looked: Option<Instant>,
    is_skipped: bool,
    is_awaited: bool,
}

impl Encoders {
    pub(super) fn handle_events(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let Some(subscribers) = driver.subscribers() else { return };
        if subscribers.is_empty() {
            *self = Self::default();
            return;
        }
        self.is_awaited |= subscribers.take_new();
        self.is_skipped = self.looked.is_some_and(|at| now.since(at) < INTERVAL_MIN);
        if self.is_skipped {
            return;
        }
        self.looked = Some(now);
        let lanes = driver.node.encoder_targets(now);
        let is_current = self.published.as_ref().is_some_and(|(at, published)| {
            *published == lanes && now.since(*at) < INTERVAL_MAX && !self.is_awaited
        });
        if !is_current {
            let word = EncoderWord { lanes };
            let publish = |subscribers: &Subscribers| subscribers.publish(&json!(word).to_string());
            driver.subscribers().into_iter().for_each(publish);
            self.is_awaited = false;
            self.published = Some((now, word.lanes));
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let interval = if self.is_skipped { INTERVAL_MIN } else { INTERVAL_MAX };
        self.looked.map(|at| at + interval)
    }
}

pub(super) fn grant(params: &Value) -> Result<Value, RpcError> {
    let subscribe: Subscribe = parse(params)?;
    let intervals = Subscribe::INTERVALS_MS;
    if !intervals.contains(&subscribe.interval_ms) {
        let (least, most) = intervals.into_inner();
        let message = format!("interval_ms is {}; {least} to {most}", subscribe.interval_ms);
        return Err(RpcError::invalid_params(message));
    }
    Ok(json!({ "topic": subscribe.topic }))
}

/// Less than a frame at 60 fps.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Keepalive: subscribers may take longer silence for the end of the program.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
