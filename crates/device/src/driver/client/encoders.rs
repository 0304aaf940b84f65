//! Encoders that want to be told what to do, and are: by the local socket, by HTTP.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_tunnel::{Client, EncoderTarget};
use roadweave_types::Instant;
use serde_json::{Value, json};

use crate::driver::event_loop::Driver;
use crate::driver::settings::parse;
use crate::local::{EncoderWord, RpcError, Subscribe, Subscribers};

/// What encoders were told last.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    told: Option<(Instant, BTreeMap<String, EncoderTarget>)>,
    is_heard: bool,
}

impl Encoders {
    /// Tells whoever listens what has changed, as often as may be.
    pub(super) fn handle_events(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let Some(subscribers) = driver.subscribers() else { return };
        self.is_heard = !subscribers.is_empty();
        let is_awaited = subscribers.take_new();
        if !self.is_heard {
            self.told = None;
            return;
        }
        let since = self.told.as_ref().map(|(at, _)| now.since(*at));
        if !is_awaited && since.is_some_and(|since| since < INTERVAL_MIN) {
            return;
        }
        let lanes = driver.node.encoder_targets(now);
        let is_news = self.told.as_ref().is_none_or(|(_, told)| *told != lanes);
        if is_awaited || is_news || since.is_some_and(|since| since >= INTERVAL_MAX) {
            let word = EncoderWord { lanes };
            let tell = |subscribers: &Subscribers| subscribers.publish(&json!(word).to_string());
            driver.subscribers().into_iter().for_each(tell);
            self.told = Some((now, word.lanes));
        }
    }

    /// When [`Encoders::handle_events`] has something to tell, if nothing happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let (at, _) = self.told.as_ref().filter(|_| self.is_heard)?;
        Some(*at + INTERVAL_MAX)
    }
}

/// Answers one who wants to subscribe.
///
/// # Errors
/// What is wrong with the parameters.
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

/// A frame of 60 a second takes longer.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Whoever hears nothing for longer may take the program for dead.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
