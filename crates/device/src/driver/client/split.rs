//! The connections of the LAN that end at this box without having been told to: what leads them to
//! the entrance.
//!
//! ```text
//! interfaces inside ─► routes: what is marked is this machine's ─► table: what is marked
//! ```
//!
//! Nothing is marked before it is led here. Whether connections are taken is the entrance's to say,
//! by its listeners; what fails here leaves them to the tunnel.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_types::Instant;

use crate::driver::steering::Steering;
use crate::filter::split::{self, SplitRules, SplitTable};
use crate::{DeviceError, Instance, Interface};

/// What leads connections to the entrance, kept so while the client runs.
pub(super) struct Split {
    table: SplitTable,
    inside: Vec<Interface>,
    next_look: Instant,
    /// Why it is not as it should be, if so.
    failure: Option<String>,
}

impl Split {
    /// Leads nothing yet; `listeners` are the entrance's.
    pub(super) fn new(
        instance: &Instance,
        tun: &str,
        rules: SplitRules,
        listeners: impl Iterator<Item = SocketAddr>,
    ) -> Self {
        let listeners = listeners.map(|address| (address.ip(), address.port())).collect();
        Self {
            table: SplitTable::new(instance, tun, rules, listeners),
            inside: Vec::new(),
            next_look: Instant::ZERO,
            failure: Some("it begins".to_owned()),
        }
    }

    /// Connections come by these interfaces from now on.
    pub(super) fn set_inside(&mut self, steering: &mut Steering, now: Instant, to: &[Interface]) {
        if self.inside != to {
            to.clone_into(&mut self.inside);
            self.look(steering, now);
        }
    }

    /// When [`Split::handle_timeout`] looks.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.next_look
    }

    /// Looks from time to time whether all is as it should be, and mends what is not.
    pub(super) fn handle_timeout(&mut self, steering: &mut Steering, now: Instant) {
        if self.next_look <= now {
            self.look(steering, now);
        }
    }

    /// Why connections are not led to the entrance, if they are not.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn look(&mut self, steering: &mut Steering, now: Instant) {
        self.next_look = now + LOOK;
        match self.mend(steering) {
            Ok(false) => self.failure = None,
            Ok(true) => {
                self.failure = None;
                tracing::warn!(
                    "another program changed or removed the table of split connections; it is set \
                     again"
                );
            }
            Err(error) => {
                let text = error.to_string();
                if self.failure.as_ref() != Some(&text) {
                    tracing::warn!("connections go by the tunnel, and are not split: {text}");
                }
                self.failure = Some(text);
            }
        }
    }

    fn mend(&mut self, steering: &mut Steering) -> Result<bool, DeviceError> {
        steering.take_split(self.inside.iter().map(|it| it.name.clone()).collect())?;
        self.table.set_inside(self.inside.clone());
        self.table.mend()
    }
}

/// Removes what an earlier run has left that split connections.
pub(super) fn remove_left(instance: &Instance) {
    match split::remove_left(instance) {
        Ok(()) | Err(DeviceError::Unavailable { .. }) => {}
        Err(error) => tracing::warn!("the table of split connections is not removed: {error}"),
    }
}

/// How often it is looked at whether all is as it should be.
const LOOK: Duration = Duration::from_secs(4);
