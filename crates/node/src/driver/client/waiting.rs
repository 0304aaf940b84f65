//! Actions that wait for nftables tables, which threads put in place: uplinks wait for filters and
//! marks, the server's grant and exclusions for filters, the answer to a reload for all of them.

use roadweave_config::RouteFields;
use roadweave_proto::Instant;
use roadweave_tunnel::Client;

use super::ClientRole;
use super::streams::LanStreams;
use crate::driver::event_loop::Driver;
use crate::driver::{from_config, reread};
use crate::local::{LocalRequest, ReloadAnswer, RpcError};

#[derive(Debug, Default)]
pub(super) struct WaitingActions {
    pub(super) uplinks: bool,
    exclusion: bool,
    reloads: Vec<(LocalRequest, ReloadAnswer)>,
}

impl WaitingActions {
    pub(super) fn add_reload(
        &mut self,
        request: LocalRequest,
        reloaded: Result<ReloadAnswer, String>,
    ) {
        match reloaded {
            Ok(_) if self.reloads.len() >= RELOADS_MAX => request.answer(Err(RpcError::busy())),
            Ok(reloaded) => self.reloads.push((request, reloaded)),
            failed => request.answer(reread::answer(failed)),
        }
    }
}

impl ClientRole {
    pub(super) fn take_filters(&mut self, driver: &mut Driver<Client>, now: Instant) {
        if !self.filters.hold() && !self.waiting.uplinks {
            self.waiting.uplinks = true;
            let uplinks: Vec<_> = driver.edge.sockets.keys().flatten().copied().collect();
            uplinks.into_iter().for_each(|uplink| self.drop_uplink(driver, now, uplink));
        }
        if self.waiting.uplinks && self.filters.hold() && self.steering.answers.are_ready() {
            self.waiting.uplinks = false;
            self.retry_uplinks(driver, now);
        }
        self.use_granted(driver);
        self.use_excluded(now);
    }

    pub(super) fn obstacle(&self) -> Option<String> {
        let is_unmarked = self.waiting.uplinks && !self.steering.answers.are_ready();
        let unmarked = "an uplink is not used until the marks for its replies are set";
        self.filters.obstacle().or_else(|| is_unmarked.then(|| unmarked.to_owned()))
    }

    /// Changes the excluded traffic. A connection keeps the source address of its first packet, so
    /// filters are added before the routes that need them, and removed after.
    pub(super) fn exclude(&mut self, now: Instant, read: RouteFields) {
        let routes = &mut self.options.file.routes;
        let (before, excluded) = (from_config::excluded(routes), from_config::excluded(&read));
        if before == excluded {
            return;
        }
        (routes.exclude, routes.exclude_mark) = (read.exclude, read.exclude_mark);
        let left = before.within(&excluded);
        if left != before {
            self.steering.set_excluded(now, left);
        }
        self.filters.add_excluded(&excluded);
        self.waiting.exclusion = true;
        self.use_excluded(now);
    }

    fn use_excluded(&mut self, now: Instant) {
        if !self.waiting.exclusion || !self.filters.are_in_place() {
            return;
        }
        self.waiting.exclusion = false;
        let excluded = from_config::excluded(&self.options.file.routes);
        if self.steering.set_excluded(now, excluded.clone()) {
            self.filters.set_excluded(excluded.clone());
        }
        if let Some(streams) = &mut self.streams {
            streams.set_excluded(&mut self.steering, now, &excluded);
        }
    }

    pub(super) fn answer_reloads(&mut self) {
        let is_settled = self.streams.as_ref().is_none_or(LanStreams::is_settled);
        if self.waiting.exclusion || !is_settled {
            return;
        }
        for (request, reloaded) in self.waiting.reloads.drain(..) {
            request.answer(reread::answer(Ok(reloaded)));
        }
    }
}

/// A caller that disconnected counts until its reload is done.
const RELOADS_MAX: usize = 16;
