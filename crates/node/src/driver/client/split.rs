//! Redirects intercepted LAN connections to the listener. Marks are set once routes lead marked
//! packets here; its sockets decide whether connections are taken. Failed ones retry by the tunnel.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_config::{ClientStreams, TcpWay};
use roadweave_linux::split::{self, SplitOptions};
use roadweave_linux::{
    DeviceError, Excluded, Instance, Interface, MaintainedTable, TableTurn, Waker,
};
use roadweave_proto::{Instant, Kind, Marks};

use crate::driver::from_config::split_rule;
use crate::driver::steering::Steering;

pub(super) struct Split {
    name: String,
    options: SplitOptions,
    table: MaintainedTable,
    inside: Vec<Interface>,
    is_led: bool,
    next_look: Instant,
    astray: u64,
    astray_text: String,
    /// Nothing is redirected until then, because redirected connections did not arrive.
    rests_until: Option<Instant>,
    failure: Option<String>,
}

impl Split {
    pub(super) fn new(
        instance: &Instance,
        tun: &str,
        fields: &ClientStreams,
        listeners: impl Iterator<Item = SocketAddr>,
        waker: Waker,
    ) -> Self {
        let listeners = listeners.map(|address| (address.ip(), address.port())).collect();
        let (name, tun, marks) = (instance.split_table(), tun.to_owned(), instance.marks());
        let (inside, excluded) = (Vec::new(), Excluded::default());
        let rules = fields.rules.iter().map(split_rule).collect();
        let split_others = fields.tcp == TcpWay::Split;
        Self {
            table: MaintainedTable::new(name.clone(), Some(waker)),
            name,
            options: SplitOptions { tun, rules, split_others, listeners, inside, excluded, marks },
            inside: Vec::new(),
            is_led: false,
            next_look: Instant::ZERO,
            astray: 0,
            astray_text: astray_text(instance.marks()),
            rests_until: None,
            failure: Some("it is starting".to_owned()),
        }
    }

    pub(super) fn set_inside(&mut self, steering: &mut Steering, now: Instant, to: &[Interface]) {
        if self.inside != to {
            to.clone_into(&mut self.inside);
            self.look(steering, now);
        }
    }

    pub(super) fn set_excluded(
        &mut self,
        steering: &mut Steering,
        now: Instant,
        excluded: Excluded,
    ) {
        if self.options.excluded != excluded {
            self.options.excluded = excluded;
            self.table.set_stale();
        }
        if !self.inside.is_empty() {
            self.look(steering, now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.table.poll_timeout().map_or(self.next_look, |at| at.min(self.next_look))
    }

    pub(super) fn handle_timeout(&mut self, steering: &mut Steering, now: Instant) {
        if self.next_look <= now {
            self.look(steering, now);
        } else {
            self.turn_table(now);
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.inside.is_empty() || self.failure.is_some() || self.table.is_in_place()
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn look(&mut self, steering: &mut Steering, now: Instant) {
        self.next_look = now + LOOK;
        if self.goes_astray(now) {
            return;
        }
        let led =
            steering.routes.take_split(self.inside.iter().map(|it| it.name.clone()).collect());
        self.is_led = led.is_ok();
        match led {
            Ok(()) => {
                if self.options.inside != self.inside {
                    self.options.inside.clone_from(&self.inside);
                    self.table.set_stale();
                }
                self.turn_table(now);
            }
            Err(error) => self.fail(&error),
        }
    }

    fn turn_table(&mut self, now: Instant) {
        let (name, options) = (&self.name, &self.options);
        match self.table.turn(now, |_| split::text(name, options)) {
            TableTurn::Unchanged | TableTurn::Replaced { was_changed: false } => {}
            TableTurn::Replaced { was_changed: true } => tracing::warn!(
                "another program changed or removed the table of split connections; it is restored"
            ),
            TableTurn::Failed(error) => return self.fail(&error),
        }
        if self.is_led && self.table.is_in_place() && self.rests_until.is_none() {
            self.failure = None;
        }
    }

    fn fail(&mut self, error: &DeviceError) {
        let text = error.to_string();
        if self.failure.as_ref() != Some(&text) {
            tracing::warn!("connections use the tunnel and are not split: {text}");
        }
        self.failure = Some(text);
    }

    /// Whether redirected connections do not arrive, or did not a while ago. One may be on its way.
    fn goes_astray(&mut self, now: Instant) -> bool {
        if self.rests_until.is_some_and(|until| now < until) {
            return true;
        }
        self.rests_until = None;
        let astray = split::astray(&mut self.table).unwrap_or(self.astray);
        let more = astray.saturating_sub(std::mem::replace(&mut self.astray, astray));
        if more < 2 {
            return false;
        }
        tracing::warn!("connections use the tunnel and are not split: {}", self.astray_text);
        self.rests_until = Some(now + REST);
        self.failure = Some(self.astray_text.clone());
        true
    }
}

pub(super) fn remove_left(instance: &Instance) {
    match split::remove_left(instance) {
        Ok(()) | Err(DeviceError::Unavailable { .. }) => {}
        Err(error) => {
            tracing::warn!("the table of split connections could not be removed: {error}")
        }
    }
}

fn astray_text(marks: Marks) -> String {
    let (mark, mask) = marks.kind(Kind::Taken);
    format!(
        "redirected connections do not arrive: a firewall of this box drops them at INPUT (accept \
         packets with the mark {mark:#x}/{mask:#x}), or a rule of another program routes them \
         elsewhere"
    )
}

const REST: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_secs(4);
