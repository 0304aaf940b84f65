//! The clients, and where they may go, are read again while the tunnel goes on.
//!
//! ```text
//! SIGHUP, members ─► thread: file, checks, trie, differences, routes, filters ─► outcome, waker
//! loop:              … packets, timers, packets, …                  ─► the table is swapped
//! ```
//!
//! With thousands of clients all of it takes a second, in which the loop must not stand still. The
//! thread borrows what it changes and gives it back with its outcome; a second signal meanwhile
//! makes it all be done once more afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_tunnel::{Peer, Peers, PeersChange};

use super::{Destinations, Machine, Reload, ServerReload};
use crate::fleet::beside;
use crate::{DeviceError, Waker};

/// Reads the clients again, one time after the other.
pub(in crate::driver) struct Reloader {
    /// `None` once it is to end.
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    /// Whether another change came meanwhile, and whether the file is to be read again for it.
    again: Option<bool>,
}

/// What is to be brought in line.
pub(in crate::driver) struct Change {
    /// Whether the file is read again.
    pub(in crate::driver) rereads: bool,
    /// Who may connect beside the clients of the file.
    pub(in crate::driver) members: Arc<Vec<(PublicKey, Peer)>>,
    /// Those of today.
    pub(in crate::driver) peers: Arc<Peers>,
}

impl Change {
    /// The file alone is read again.
    pub(in crate::driver) fn of_file(peers: Arc<Peers>) -> Self {
        Self { rereads: true, members: Arc::default(), peers }
    }
}

/// What the thread works with.
struct Job {
    machine: Machine,
    change: Change,
}

/// What it gives back.
pub(in crate::driver) struct Outcome {
    machine: Machine,
    reloaded: Result<Reloaded, String>,
}

/// What was read.
pub(in crate::driver) struct Reloaded {
    pub(in crate::driver) change: PeersChange,
    pub(in crate::driver) destinations: Destinations,
    /// The clients of the file.
    pub(in crate::driver) of_file: BTreeSet<PublicKey>,
    pub(in crate::driver) proxies: Vec<(PublicKey, Peer)>,
}

impl Reloader {
    /// Starts the thread, in the network namespace of the calling one; `waker` wakes the loop for
    /// outcomes. `file`: what was read before; `own`: the server's own inner addresses.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(in crate::driver) fn start(
        mut reload: Reload,
        mut file: ServerReload,
        own: Vec<IpNet>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        let (jobs, taken) = channel::<Job>();
        let (sender, outcomes) = channel();
        let work = move || {
            while let Ok(Job { mut machine, change }) = taken.recv() {
                let Change { rereads, members, peers } = change;
                let read = if rereads { reload().map(|read| file = read) } else { Ok(()) };
                let reloaded = read.map(|()| {
                    let (all, left_out) = beside(file.peers.clone(), &members, &own);
                    if left_out > 0 {
                        tracing::warn!(
                            left_out,
                            "members of the fleet share keys or addresses with others, and are \
                             not let in"
                        );
                    }
                    let change = Peers::after(&peers, all);
                    machine.lead(&change.peers);
                    let of_file = file.peers.iter().map(|(key, _)| *key).collect();
                    Reloaded {
                        change,
                        destinations: file.destinations.clone(),
                        of_file,
                        proxies: file.proxies.clone(),
                    }
                });
                // The last of the former ones may go here, where it may take a while.
                drop((peers, members));
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
        Ok(Self { jobs: Some(jobs), outcomes, thread: Some(thread), again: None })
    }

    /// Begins to bring the clients in line; if that is under way, it is done once more afterwards.
    pub(in crate::driver) fn begin(&mut self, machine: &mut Option<Machine>, change: Change) {
        if machine.is_none() {
            self.again = Some(change.rereads || self.again.unwrap_or_default());
            return;
        }
        let (Some(taken), Some(jobs)) = (machine.take(), &self.jobs) else { return };
        if let Err(refused) = jobs.send(Job { machine: taken, change }) {
            *machine = Some(refused.0.machine);
            tracing::error!("the clients cannot be read again: the thread for it is gone");
        }
    }

    /// Waits for the outcome that is under way, for [`Reloader::poll`].
    pub(in crate::driver) fn wait(&mut self) -> Option<Outcome> {
        self.outcomes.recv().ok()
    }

    /// Takes an outcome: gives `machine` back, and returns what was read if it could be.
    pub(in crate::driver) fn poll(&mut self, machine: &mut Option<Machine>) -> Option<Reloaded> {
        let outcome = self.outcomes.try_recv().ok()?;
        Self::take(machine, outcome)
    }

    /// Gives `machine` back, and returns what was read if it could be.
    pub(in crate::driver) fn take(
        machine: &mut Option<Machine>,
        outcome: Outcome,
    ) -> Option<Reloaded> {
        *machine = Some(outcome.machine);
        let told = |error: &String| tracing::error!("nothing was changed: {error}");
        outcome.reloaded.inspect_err(told).ok()
    }

    /// Whether another change came while the thread was at work, which it is no more, and whether
    /// the file is to be read again for it.
    pub(in crate::driver) fn take_due_again(&mut self, machine: &Option<Machine>) -> Option<bool> {
        self.again.take_if(|_| machine.is_some())
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
