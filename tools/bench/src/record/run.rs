//! A running recording: all links on one clock and one poller.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_linux::{Clock, Interest, Poller, Signals, Token};
use roadweave_proto::Instant;
use tracing::warn;

use super::NAP;
use super::display::Display;
use super::link::LinkRecorder;

pub struct RecordRun {
    pub clock: Clock,
    pub server: SocketAddr,
    pub links: Vec<LinkRecorder>,
    pub started: bool,
}

impl RecordRun {
    pub fn carry(&mut self, signals: &mut Signals, display: &mut Display) -> anyhow::Result<()> {
        let mut poller = Poller::new()?;
        poller.add(&*signals, SIGNALS, Interest::Read)?;
        let mut interrupted = false;
        while !self.links.iter().all(|link| link.client.is_done(self.clock.now())) {
            if signals.take().is_some() {
                if interrupted {
                    break;
                }
                interrupted = true;
                let now = self.clock.now();
                self.links.iter_mut().for_each(|link| link.client.finish(now));
            }
            let now = self.clock.now();
            self.start_when_ready(now)?;
            let mut sent = false;
            for (link, token) in self.links.iter_mut().zip(0..) {
                link.reopen(now, &poller)?;
                sent |= link.transmit(now);
                link.watch(&poller, Token(token))?;
            }
            display.show(now, &self.links);
            let now = self.clock.now();
            let due = self.links.iter().map(|link| link.poll_timeout(now)).min();
            let due = due.unwrap_or(now).min(display.next);
            let wait = Clock::until(now, due).map(|wait| if sent { wait.max(NAP) } else { wait });
            poller.wait(wait).context("cannot wait for the sockets")?;
            self.links.iter_mut().for_each(|link| link.receive(self.clock));
        }
        // Sends each link's last message, so that the server can forget the link.
        let now = self.clock.now();
        for link in &mut self.links {
            link.transmit(now);
        }
        display.finish();
        Ok(())
    }

    /// Starts once the server has answered on each link, or on some within [`READY_WITHIN`].
    fn start_when_ready(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.started {
            return Ok(());
        }
        let ready = |link: &LinkRecorder| link.client.is_ready();
        let waited = now.since(Instant::ZERO);
        let all = self.links.iter().all(ready);
        if !all && waited < READY_WITHIN {
            return Ok(());
        }
        if !self.links.iter().any(ready) {
            if waited < ANSWER_WITHIN {
                return Ok(());
            }
            let mut message = format!(
                "{} does not answer; is `roadweave record server` running there, and its port open?",
                self.server
            );
            for link in &self.links {
                let refusal = link.client.refusal().map(|why| format!(": {why}"));
                let cause = refusal.unwrap_or_else(|| link.cause());
                let _ = write!(message, "\n  {}{cause}", link.name.name);
            }
            bail!(message);
        }
        for link in self.links.iter().filter(|link| !ready(link)) {
            warn!("{}: no answer yet{}; the other links begin", link.name.name, link.cause());
        }
        self.links.iter_mut().for_each(|link| link.client.start(now));
        self.started = true;
        Ok(())
    }
}

const SIGNALS: Token = Token(u64::MAX);
const READY_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
