//! The clients, and where they may go, are read again while the tunnel goes on.
//!
//! ```text
//! SIGHUP, members ─► thread: file, checks, trie, differences, routes ─► outcome, waker
//! loop:              … packets, timers, packets, …        ─► the table is swapped, filters follow
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

use super::machine::Machine;
use crate::fleet::{Members, beside};
use crate::{DeviceError, Waker};

/// What of the configuration may change while a server, a proxy or an anchor runs.
#[derive(Clone, Debug, Default)]
pub struct ServerReload {
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// Where clients may go.
    pub destinations: Destinations,
    /// The proxies of an anchor that may connect.
    pub proxies: Vec<(PublicKey, Peer)>,
}

/// Where clients may go through a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Where they may not, besides the server's own addresses other than inner ones.
    pub denied: Vec<IpNet>,
    /// Where they may go all the same: addresses, with one port or all.
    pub allowed: Vec<(IpNet, Option<u16>)>,
}

/// Reads the configuration again, in a thread of its own.
pub type Reload = Box<dyn FnMut() -> Result<ServerReload, String> + Send>;

impl ServerReload {
    /// All whom the file names.
    pub(super) fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.peers.iter().chain(&self.proxies).map(|(key, _)| *key)
    }
}

/// What inner addresses are not a member's to have.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    /// The own inner addresses.
    pub(super) own: Vec<IpNet>,
    /// Whether those of different tenants are apart.
    pub(super) by_tenant: bool,
}

/// Reads the clients again, one time after the other.
pub(super) struct Reloader {
    /// `None` once it is to end.
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread is at work.
    is_busy: bool,
    /// Whether another change came meanwhile, and whether the file is to be read again for it.
    again: Option<bool>,
    /// `None` while the thread changes it, and where nothing is held of the machine.
    machine: Option<Machine>,
}

/// What is to be brought in line.
pub(super) struct Change {
    /// Whether the file is read again.
    pub(super) rereads: bool,
    /// Who may connect beside those of the file.
    pub(super) members: Arc<Members>,
    /// The clients of today.
    pub(super) peers: Arc<Peers>,
}

/// What the thread works with.
struct Job {
    machine: Option<Machine>,
    change: Change,
}

/// What it gives back.
struct Outcome {
    machine: Option<Machine>,
    reloaded: Result<Reloaded, String>,
}

/// What was read.
pub(super) struct Reloaded {
    pub(super) change: PeersChange,
    pub(super) proxies: Vec<(PublicKey, Peer)>,
    pub(super) destinations: Destinations,
    /// Whom the file names.
    pub(super) of_file: BTreeSet<PublicKey>,
}

impl Reloader {
    /// Starts the thread, in the network namespace of the calling one; `waker` wakes the loop for
    /// outcomes. `file`: what was read before.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(super) fn start(
        mut reload: Reload,
        mut file: ServerReload,
        taken: Taken,
        machine: Option<Machine>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        let (jobs, todo) = channel::<Job>();
        let (sender, outcomes) = channel();
        let work = move || {
            while let Ok(Job { mut machine, change }) = todo.recv() {
                let read = match change.rereads {
                    true => reload().map(|read| file = read),
                    false => Ok(()),
                };
                let reloaded = read.map(|()| {
                    let reloaded = merged(&file, &change, &taken);
                    machine.iter_mut().for_each(|machine| machine.lead(&reloaded.change.peers));
                    reloaded
                });
                // The last of the former ones may go here, where it may take a while.
                drop(change);
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
        let (jobs, thread) = (Some(jobs), Some(thread));
        Ok(Self { jobs, outcomes, thread, is_busy: false, again: None, machine })
    }

    /// What of the clients lies beyond the own inner networks.
    pub(super) fn routed(&self) -> &[IpNet] {
        self.machine.as_ref().map_or(&[], Machine::routed)
    }

    /// Begins to bring the clients in line; if that is under way, it is done once more afterwards.
    pub(super) fn begin(&mut self, change: Change) {
        if self.is_busy {
            self.again = Some(change.rereads || self.again.unwrap_or_default());
            return;
        }
        let Some(jobs) = &self.jobs else { return };
        match jobs.send(Job { machine: self.machine.take(), change }) {
            Ok(()) => self.is_busy = true,
            Err(refused) => {
                self.machine = refused.0.machine;
                tracing::error!("the clients cannot be read again: the thread for it is gone");
            }
        }
    }

    /// Waits for what is under way, and returns what was read if it could be.
    pub(super) fn wait(&mut self) -> Option<Reloaded> {
        let outcome = self.is_busy.then(|| self.outcomes.recv().ok()).flatten()?;
        self.take(outcome)
    }

    /// Returns what was read since the last time, if it could be.
    pub(super) fn poll(&mut self) -> Option<Reloaded> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.take(outcome)
    }

    fn take(&mut self, outcome: Outcome) -> Option<Reloaded> {
        (self.machine, self.is_busy) = (outcome.machine, false);
        let told = |error: &String| tracing::error!("nothing was changed: {error}");
        outcome.reloaded.inspect_err(told).ok()
    }

    /// Whether another change came while the thread was at work, which it is no more, and whether
    /// the file is to be read again for it.
    pub(super) fn take_due_again(&mut self) -> Option<bool> {
        self.again.take_if(|_| !self.is_busy)
    }

    /// Waits for what is under way, and ends the thread.
    pub(super) fn stop(&mut self) {
        if self.is_busy
            && let Ok(outcome) = self.outcomes.recv()
        {
            self.machine = outcome.machine;
        }
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Without jobs it ends by itself.
            let _ = thread.join();
        }
    }
}

/// What `file` and the members of the fleet come to together.
fn merged(file: &ServerReload, change: &Change, taken: &Taken) -> Reloaded {
    let Members { boxes, proxies } = &*change.members;
    let Taken { own, by_tenant } = taken;
    let (all, left_out) = beside(file.peers.clone(), boxes, own, *by_tenant);
    if left_out > 0 {
        tracing::warn!(
            left_out,
            "members of the fleet share keys or addresses with others, and are not let in"
        );
    }
    let is_new = |(key, _): &&(PublicKey, Peer)| file.proxies.iter().all(|(known, _)| known != key);
    Reloaded {
        change: Peers::after(&change.peers, all),
        proxies: file.proxies.iter().chain(proxies.iter().filter(is_new)).cloned().collect(),
        destinations: file.destinations.clone(),
        of_file: file.keys().collect(),
    }
}
