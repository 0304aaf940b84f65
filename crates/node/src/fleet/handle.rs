//! The event loop's handle of the fleet's thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use roadweave_fleet::Role;
use roadweave_linux::threads::{lock, spawn};
use roadweave_linux::{DeviceError, Waker};
use roadweave_proto::Instant;

use super::controller_route::ControllerRoute;
use super::figures::FigureSampler;
use super::mailbox::{FleetCommands, FleetMailbox, FleetUpdates};
use super::membership::Membership;
use super::thread::{Merge, Thread};
use super::worker::{FleetWorker, keep_alive};
use crate::status::FleetStatus;

pub(crate) struct FleetOptions<C> {
    pub(crate) membership: Membership,
    pub(crate) merge: Merge<C>,
    /// The time without a controller after which no member is let in.
    pub(crate) offline_max: Option<Duration>,
}

impl FleetOptions<()> {
    pub(crate) fn without_merge(membership: Membership, offline_max: Option<Duration>) -> Self {
        let merge = |remote: Option<&str>| match remote {
            None => Ok(((), Vec::new())),
            Some(_) => Err("this can only be set by its own file".to_owned()),
        };
        Self { membership, merge: Box::new(merge), offline_max }
    }
}

/// Dropping it writes the state, if the disk takes it in time.
#[derive(Debug)]
pub(crate) struct Fleet<C> {
    mailbox: Arc<FleetMailbox<C>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    over: Receiver<()>,
}

impl<C: Send + 'static> Fleet<C> {
    /// `loop_waker` announces updates. The persisted state is the first one.
    pub(crate) fn start(options: FleetOptions<C>, loop_waker: Waker) -> Result<Self, DeviceError> {
        let FleetOptions { membership, merge, offline_max } = options;
        let Membership { clock, agent, store, identity, events, role, name } = membership;
        let ways = match role {
            Role::Box => Vec::new(),
            _ => vec![ControllerRoute::System],
        };
        let worker = FleetWorker::start(clock, agent, store, identity, ways, keep_alive(role))?;
        let waker = worker.connection.waker();
        let mailbox = Arc::new(FleetMailbox {
            updates: Mutex::default(),
            commands: Mutex::default(),
            status: Mutex::default(),
            in_step: Mutex::default(),
            in_step_now: Condvar::new(),
        });
        let mut thread = Thread {
            worker,
            merge,
            role,
            name,
            mailbox: mailbox.clone(),
            loop_waker,
            offline_max,
            is_closed: false,
            batches: 0,
            uplinks: Vec::new(),
            has_session: false,
            waiting: None,
            written: 0,
            ended: 0,
            confirmed: 0,
            figures: FigureSampler::default(),
        };
        events.into_iter().for_each(|event| thread.on_event(Instant::ZERO, event));
        thread.hand_over();
        thread.update_status();
        let (alive, over) = channel();
        let thread = spawn("fleet", move || {
            let _alive: Sender<()> = alive;
            thread.run();
        })?;
        Ok(Self { mailbox, waker, thread: Some(thread), over })
    }
}

impl<C> Fleet<C> {
    pub(crate) fn updates(&self) -> FleetUpdates<C> {
        let mut updates = lock(&self.mailbox.updates);
        let batch = updates.batch;
        std::mem::replace(&mut *updates, FleetUpdates { batch, ..FleetUpdates::default() })
    }

    pub(crate) fn wait_in_step(&self, most: Duration) -> bool {
        let (in_step, is_not) = (lock(&self.mailbox.in_step), |in_step: &mut bool| !*in_step);
        let waited = self.mailbox.in_step_now.wait_timeout_while(in_step, most, is_not);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn away(&self, now: Instant) -> Duration {
        lock(&self.mailbox.status).away_since.map(|since| now.since(since)).unwrap_or_default()
    }

    pub(crate) fn status(&self, now: Instant) -> FleetStatus {
        let mut status = lock(&self.mailbox.status).clone();
        status.away_seconds = status.away_since.map(|since| now.since(since).as_secs_f64());
        status
    }

    pub(crate) fn command(&self, give: impl FnOnce(&mut FleetCommands)) {
        give(&mut lock(&self.mailbox.commands));
        self.waker.wake();
    }
}

impl<C> Drop for Fleet<C> {
    fn drop(&mut self) {
        lock(&self.mailbox.commands).stop = true;
        self.waker.wake();
        let Some(thread) = self.thread.take() else { return };
        match self.over.recv_timeout(STOP_MAX) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(
                    "the disk did not accept the state of the fleet in time; stopping without it"
                );
            }
            _ => _ = thread.join(),
        }
    }
}

const STOP_MAX: Duration = Duration::from_secs(5);
