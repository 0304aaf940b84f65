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
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_tunnel::{Forwarded, Peer, Peers, PeersChange, ProxyTenant};

use super::anchor_names::AnchorPlace;
use super::anchors::TenantRoutes;
use super::machine::{Leads, Machine};
use crate::driver::Reread;
use crate::fleet::{LeftOut, Members, Space, beside};
use crate::{DeviceError, Forward, Waker};

/// What of the configuration may change while a server, a proxy or an anchor runs.
#[derive(Clone, Debug, Default)]
pub struct ServerReload {
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// Where clients may go.
    pub destinations: Destinations,
    /// The proxies of an anchor that may connect.
    pub proxies: Vec<(PublicKey, Peer)>,
    /// Networks, besides the own inner ones, in which members of a fleet may have addresses.
    pub accepted: Vec<IpNet>,
    /// The tenants of a proxy.
    pub tenants: Vec<ProxyTenant>,
    /// Where their anchors are.
    pub anchors: Vec<AnchorPlace>,
}

/// Where clients may go through a server, and what leads to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Where clients may not go, besides the server's own addresses other than inner ones.
    pub denied: Vec<IpNet>,
    /// Where clients may go all the same: addresses, with one port or all.
    pub allowed: Vec<(IpNet, Option<u16>)>,
    /// Ports of this machine that lead to devices behind clients.
    pub forwards: Vec<Forward>,
}

impl Destinations {
    /// What leads to clients, as the tunnel knows it.
    pub(in crate::driver) fn forwarded(&self) -> Vec<Forwarded> {
        let of = |it: &Forward| Forwarded {
            to: it.to,
            tcp: it.tcp,
            udp: it.udp,
            ports: it.to_ports.clone(),
        };
        self.forwards.iter().map(of).collect()
    }
}

/// Reads the configuration again, in a thread of its own.
pub type Reload = Box<dyn FnMut() -> Result<Reread<ServerReload>, String> + Send>;

impl ServerReload {
    /// All whom the file names.
    pub(super) fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.peers.iter().chain(&self.proxies).map(|(key, _)| *key)
    }

    /// Where a proxy leads to.
    pub(super) fn led(&self) -> TenantRoutes {
        TenantRoutes { tenants: self.tenants.clone(), places: self.anchors.clone() }
    }
}

/// Reads the clients again, one time after the other.
pub(super) struct Reloader {
    /// `None` once it is to end.
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    /// How many readings were begun.
    begun: u64,
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

/// What the thread gives back.
struct Outcome {
    machine: Option<Machine>,
    reloaded: Result<Reloaded, String>,
}

/// What was read.
pub(super) struct Reloaded {
    pub(super) change: PeersChange,
    pub(super) proxies: Vec<(PublicKey, Peer)>,
    pub(super) destinations: Destinations,
    pub(super) led: TenantRoutes,
    /// Whom the file names.
    pub(super) of_file: BTreeSet<PublicKey>,
    /// Fields of the file that count from the next start on.
    pub(super) ignored: Vec<String>,
}

impl Reloader {
    /// Starts the thread, in the network namespace of the calling one; `waker` wakes the loop for
    /// outcomes. `file`: what was read before; `own`: the own inner addresses, `None` at a proxy.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(super) fn start(
        mut reload: Reload,
        mut file: ServerReload,
        own: Option<Vec<IpNet>>,
        machine: Option<Machine>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        let (jobs, todo) = channel::<Job>();
        let (sender, outcomes) = channel();
        let mut told = LeftOut::default();
        let work = move || {
            while let Ok(Job { mut machine, change }) = todo.recv() {
                let ignored = match change.rereads {
                    false => Ok(Vec::new()),
                    true => reload().map(|reread| {
                        let (read, ignored) = Reread::told(reread);
                        file = read;
                        ignored
                    }),
                };
                let reloaded = ignored.map(|ignored| {
                    let (mut reloaded, left_out) = merged(&file, &change, own.as_deref());
                    reloaded.ignored = ignored;
                    tell_left_out(&mut told, left_out);
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
        Ok(Self { jobs, outcomes, thread, begun: 0, is_busy: false, again: None, machine })
    }

    /// What the clients have of addresses; `None` at a proxy, and while the thread is at work.
    pub(super) fn leads(&self) -> Option<&Leads> {
        self.machine.as_ref().map(Machine::leads)
    }

    /// Begins to bring the clients in line; if that is under way, it is done once more afterwards.
    /// Returns the number of the reading that does it; `None` if there will be none.
    pub(super) fn begin(&mut self, change: Change) -> Option<u64> {
        let reading = self.begun + 1;
        if self.is_busy {
            self.again = Some(change.rereads || self.again.unwrap_or_default());
            return Some(reading);
        }
        let jobs = self.jobs.as_ref()?;
        match jobs.send(Job { machine: self.machine.take(), change }) {
            Ok(()) => (self.is_busy, self.begun) = (true, reading),
            Err(refused) => {
                self.machine = refused.0.machine;
                tracing::error!("the clients cannot be read again: {GONE}");
                return None;
            }
        }
        Some(reading)
    }

    /// Waits for what is under way, and returns what was read if it could be.
    pub(super) fn wait(&mut self) -> Option<Reloaded> {
        let outcome = self.is_busy.then(|| self.outcomes.recv().ok()).flatten()?;
        self.take(outcome).ok()
    }

    /// Returns the number of the reading that is over since the last time, and what was read or why
    /// nothing was.
    pub(super) fn poll(&mut self) -> Option<(u64, Result<Reloaded, String>)> {
        match self.outcomes.try_recv() {
            Ok(outcome) => Some((self.begun, self.take(outcome))),
            Err(TryRecvError::Disconnected) if self.is_busy => {
                self.is_busy = false;
                tracing::error!("the clients were not read again: {GONE}");
                Some((self.begun, Err(GONE.to_owned())))
            }
            Err(_) => None,
        }
    }

    fn take(&mut self, outcome: Outcome) -> Result<Reloaded, String> {
        (self.machine, self.is_busy) = (outcome.machine, false);
        let told = |error: &String| tracing::error!("nothing was changed: {error}");
        outcome.reloaded.inspect_err(told)
    }

    /// Whether another change came while the thread was at work, which it is no more, and whether
    /// the file is to be read again for it.
    pub(super) fn take_due_again(&mut self) -> Option<bool> {
        self.again.take_if(|_| !self.is_busy)
    }

    /// Whether nothing is under way or due.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_busy && self.again.is_none()
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

/// Why nothing is read again any more.
const GONE: &str = "the thread for it is gone";

/// What `file` and the members of the fleet come to together, and what of them does not count.
fn merged(file: &ServerReload, change: &Change, own: Option<&[IpNet]>) -> (Reloaded, LeftOut) {
    let Members { boxes, proxies } = &*change.members;
    let space = match own {
        Some(own) => Space::Networks { own, accepted: &file.accepted },
        None => Space::Tenants,
    };
    let (all, left_out) = beside(file.peers.clone(), boxes, space);
    let is_new = |(key, _): &&(PublicKey, Peer)| file.proxies.iter().all(|(known, _)| known != key);
    let reloaded = Reloaded {
        change: Peers::after(&change.peers, all),
        proxies: file.proxies.iter().chain(proxies.iter().filter(is_new)).cloned().collect(),
        destinations: file.destinations.clone(),
        led: file.led(),
        of_file: file.keys().collect(),
        ignored: Vec::new(),
    };
    (reloaded, left_out)
}

/// Tells what of the members does not count, if that is not what was `told` before: their table
/// may change with every box.
fn tell_left_out(told: &mut LeftOut, left_out: LeftOut) {
    if *told == left_out {
        return;
    }
    *told = left_out;
    let LeftOut { prefixes, first, members } = &*told;
    let first = first.as_ref().map(|(name, prefix)| format!("{prefix} of {name}"));
    tracing::warn!(
        members,
        prefixes,
        first,
        "not all that the fleet says of boxes counts: members that share keys or addresses with \
         others or have none are not let in, and prefixes outside of `addresses` and \
         `fleet.accept` are not theirs"
    );
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    fn nets(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|text| text.parse().expect("a prefix")).collect()
    }

    /// The addresses of one box with these, at a server with `accepted`, or at a proxy.
    fn counts(addresses: &[&str], accepted: &[&str], is_proxy: bool) -> (Vec<IpNet>, LeftOut) {
        let peer = Peer {
            name: "bus-1".to_owned(),
            tenant: "home".to_owned(),
            addresses: nets(addresses),
            expires_unix: None,
            rate_limit: None,
            offline_max: None,
        };
        let key = Identity::from_seed([1; 32]).public_key();
        let members = Members { boxes: vec![(key, peer)], proxies: Vec::new() };
        let change = Change { rereads: false, members: members.into(), peers: Arc::default() };
        let file = ServerReload { accepted: nets(accepted), ..ServerReload::default() };
        let own = nets(&["10.77.0.1/16"]);
        let (reloaded, left_out) = merged(&file, &change, (!is_proxy).then_some(&own[..]));
        let peers = reloaded.change.peers;
        (peers.iter().flat_map(|(_, peer)| peer.addresses.clone()).collect(), left_out)
    }

    #[test]
    fn what_lies_behind_boxes_is_theirs_where_the_file_accepts_it() {
        let all = ["10.77.0.3/32", "192.168.5.0/24", "169.254.169.254/32"];
        let (mine, left_out) = counts(&all, &[], false);
        assert_eq!((mine, left_out.prefixes), (nets(&all[..1]), 2));
        let (mine, left_out) = counts(&all, &["192.168.0.0/16"], false);
        assert_eq!((mine, left_out.prefixes), (nets(&all[..2]), 1));
        let first = left_out.first.expect("the one that does not count");
        assert_eq!(first, ("bus-1".to_owned(), nets(&all[2..])[0]));
        // A proxy leads nowhere by them: the anchor judges.
        assert_eq!(counts(&all, &[], true), (nets(&all), LeftOut::default()));
    }
}
