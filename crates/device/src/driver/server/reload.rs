//! The clients, and where they may go, are read again while the tunnel goes on.
//!
//! ```text
//! SIGHUP ─► thread: file, checks, trie, differences, routes, packet filters ─► outcome, waker
//! loop:     … packets, timers, packets, …                          ─► the table is swapped
//! ```
//!
//! With thousands of clients all of it takes a second, in which the loop must not stand still. The
//! thread borrows what it changes and gives it back with its outcome; a second signal meanwhile
//! makes it all be done once more afterwards.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_tunnel::{Peer, Peers, PeersChange};

use super::{Destinations, Machine, Reload, ServerReload};
use crate::{DeviceError, Waker};

/// Reads the clients again, one time after the other.
pub(in crate::driver) struct Reloader {
    /// `None` once it is to end.
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    /// Whether another signal came meanwhile.
    again: bool,
}

/// What the thread works with.
struct Job {
    machine: Machine,
    peers: Arc<Peers>,
}

/// What it gives back.
struct Outcome {
    machine: Machine,
    reloaded: Result<Reloaded, String>,
}

/// What was read.
pub(in crate::driver) struct Reloaded {
    pub(in crate::driver) change: PeersChange,
    pub(in crate::driver) destinations: Destinations,
    pub(in crate::driver) proxies: Vec<(PublicKey, Peer)>,
}

impl Reloader {
    /// Starts the thread, in the network namespace of the calling one; `waker` wakes the loop for
    /// outcomes.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(in crate::driver) fn start(mut reload: Reload, waker: Waker) -> Result<Self, DeviceError> {
        let (jobs, taken) = channel::<Job>();
        let (sender, outcomes) = channel();
        let work = move || {
            while let Ok(Job { mut machine, peers }) = taken.recv() {
                let reloaded =
                    reload().map(|ServerReload { peers: read, destinations, proxies }| {
                        let change = Peers::after(&peers, read);
                        machine.lead(&change.peers);
                        Reloaded { change, destinations, proxies }
                    });
                // The last of the former ones may go here, where it may take a while.
                drop(peers);
                if sender.send(Outcome { machine, reloaded }).is_err() {
                    return;
                }
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new()
            .name("reload".into())
            .spawn(work)
            .map_err(|error| DeviceError::system("start a thread", error))?;
        Ok(Self { jobs: Some(jobs), outcomes, thread: Some(thread), again: false })
    }

    /// Begins to read the clients again, `peers` being those of today; if that is under way, it is
    /// done once more afterwards.
    pub(in crate::driver) fn begin(&mut self, machine: &mut Option<Machine>, peers: Arc<Peers>) {
        self.again = machine.is_none();
        let (Some(taken), Some(jobs)) = (machine.take(), &self.jobs) else { return };
        if let Err(refused) = jobs.send(Job { machine: taken, peers }) {
            *machine = Some(refused.0.machine);
            tracing::error!("the clients cannot be read again: the thread for it is gone");
        }
    }

    /// Takes an outcome: gives `machine` back, and returns what was read if it could be.
    pub(in crate::driver) fn poll(&mut self, machine: &mut Option<Machine>) -> Option<Reloaded> {
        let outcome = self.outcomes.try_recv().ok()?;
        *machine = Some(outcome.machine);
        let told = |error: &String| tracing::error!("nothing was changed: {error}");
        outcome.reloaded.inspect_err(told).ok()
    }

    /// Whether another signal came while the thread was at work, which it is no more.
    pub(in crate::driver) fn is_due_again(&self, machine: &Option<Machine>) -> bool {
        self.again && machine.is_some()
    }

    /// Waits for what is under way, gives `machine` back, and ends the thread.
    pub(in crate::driver) fn stop(&mut self, machine: &mut Option<Machine>) {
        if machine.is_none()
            && let Ok(outcome) = self.outcomes.recv()
        {
            *machine = Some(outcome.machine);
        }
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Without jobs it ends by itself.
            let _ = thread.join();
        }
    }
}

/// The clients' prefixes that need routes of their own: those outside the server's inner networks.
pub(in crate::driver) fn beyond(peers: &Peers, own: &[IpNet]) -> Vec<IpNet> {
    let prefixes = peers.iter().flat_map(|(_, peer)| &peer.addresses);
    let outside = prefixes.filter(|prefix| !own.iter().any(|network| network.contains(*prefix)));
    outside.copied().collect()
}
