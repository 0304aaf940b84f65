//! Reloads clients and destinations in a thread, as thousands take a second. It borrows the
//! machine's routes and returns them with its outcome. Changes during a reload cause one more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use ipnet::IpNet;
use roadweave_config::{AllowedDestination, AnchorFile, ProxyFile, ServerFile, peers};
use roadweave_identity::PublicKey;
use roadweave_linux::threads::spawn;
use roadweave_linux::{DeviceError, Forward, Waker};
use roadweave_tunnel::{Forwarded, Peer, Peers, PeersChange, ProxyTenant};

use super::anchors::{AnchorPlace, TenantRoutes};
use super::machine::{Leads, Machine};
use crate::driver::from_config::forward;
use crate::driver::reread::{Reload, Reread};
use crate::fleet::{LeftOut, Members, Space, beside};

#[derive(Clone, Debug, Default)]
pub(in crate::driver) struct ServerReload {
    pub(in crate::driver) peers: Vec<(PublicKey, Peer)>,
    pub(in crate::driver) destinations: Destinations,
    pub(in crate::driver) proxies: Vec<(PublicKey, Peer)>,
    /// Networks beyond the own inner ones in which fleet members may have addresses.
    accepted: Vec<IpNet>,
    tenants: Vec<ProxyTenant>,
    anchors: Vec<AnchorPlace>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::driver) struct Destinations {
    /// Denied networks, in addition to the server's own addresses other than inner ones.
    pub(in crate::driver) denied: Vec<IpNet>,
    pub(in crate::driver) allowed: Vec<AllowedDestination>,
    pub(in crate::driver) forwards: Vec<Forward>,
}

impl From<&ServerFile> for ServerReload {
    fn from(file: &ServerFile) -> Self {
        let forwards = file.forwards.iter().map(|fields| forward(fields, &file.peers)).collect();
        let (denied, allowed) = (file.deny_destinations.clone(), file.allow_destinations.clone());
        Self {
            peers: peers(&file.peers),
            destinations: Destinations { denied, allowed, forwards },
            accepted: file.fleet.accept.clone(),
            ..Self::default()
        }
    }
}

impl From<&ProxyFile> for ServerReload {
    fn from(file: &ProxyFile) -> Self {
        let (tenants, anchors) = (file.proxy_config().tenants, file.anchor_names());
        Self { peers: peers(&file.peers), tenants, anchors, ..Self::default() }
    }
}

impl From<&AnchorFile> for ServerReload {
    fn from(file: &AnchorFile) -> Self {
        let (denied, allowed) = (file.deny_destinations.clone(), file.allow_destinations.clone());
        Self {
            peers: file.devices(),
            destinations: Destinations { denied, allowed, forwards: Vec::new() },
            proxies: file.proxies(),
            accepted: file.fleet.accept.clone(),
            ..Self::default()
        }
    }
}

impl Destinations {
    pub(in crate::driver) fn forwarded(&self) -> Vec<Forwarded> {
        let of = |forward: &Forward| Forwarded {
            to: forward.to,
            tcp: forward.tcp,
            udp: forward.udp,
            ports: forward.to_ports.clone(),
        };
        self.forwards.iter().map(of).collect()
    }
}

impl ServerReload {
    pub(super) fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.peers.iter().chain(&self.proxies).map(|(key, _)| *key)
    }

    pub(super) fn led(&self) -> TenantRoutes {
        TenantRoutes { tenants: self.tenants.clone(), places: self.anchors.clone() }
    }
}

pub(super) struct Reloader {
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    begun: u64,
    is_busy: bool,
    /// A change came during a reload; the value is whether the file must be read again.
    again: Option<bool>,
    /// `None` while the thread has it, and at a proxy.
    machine: Option<Machine>,
}

pub(super) struct ReloadRequest {
    pub(super) rereads: bool,
    pub(super) members: Arc<Members>,
    pub(super) peers: Arc<Peers>,
}

type Job = (Option<Machine>, ReloadRequest);
type Outcome = (Option<Machine>, Result<Reloaded, String>);

pub(super) struct Reloaded {
    pub(super) change: PeersChange,
    pub(super) proxies: Vec<(PublicKey, Peer)>,
    pub(super) destinations: Destinations,
    pub(super) led: TenantRoutes,
    pub(super) of_file: BTreeSet<PublicKey>,
    pub(super) ignored: Vec<String>,
}

impl Reloader {
    /// `file` are the settings read before.
    pub(super) fn start(
        mut reload: Reload<ServerReload>,
        mut file: ServerReload,
        machine: Option<Machine>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        let (jobs, todo) = channel::<Job>();
        let (sender, outcomes) = channel();
        let mut logged = LeftOut::default();
        let work = move || {
            while let Ok((mut machine, change)) = todo.recv() {
                let ignored = match change.rereads {
                    false => Ok(Vec::new()),
                    true => reload().map(|reread| {
                        let (read, ignored) = Reread::log_ignored(reread);
                        file = read;
                        ignored
                    }),
                };
                let reloaded = ignored.map(|ignored| {
                    let own = machine.as_ref().map(|machine| &machine.addresses[..]);
                    let (mut reloaded, left_out) = merged(&file, &change, own);
                    reloaded.ignored = ignored;
                    log_left_out(&mut logged, left_out);
                    machine.iter_mut().for_each(|machine| machine.lead(&reloaded.change.peers));
                    reloaded
                });
                // Freeing the former tables may take long, so this thread does it.
                drop(change);
                if sender.send((machine, reloaded)).is_err() {
                    return;
                }
                waker.wake();
            }
        };
        let (jobs, thread) = (Some(jobs), Some(spawn("reload", work)?));
        Ok(Self { jobs, outcomes, thread, begun: 0, is_busy: false, again: None, machine })
    }

    pub(super) fn leads(&self) -> Option<&Leads> {
        self.machine.as_ref().map(|machine| &machine.leads)
    }

    /// Returns the number of the reading that covers this change; `None` if the thread is gone.
    pub(super) fn begin(&mut self, change: ReloadRequest) -> Option<u64> {
        let reading = self.begun + 1;
        if self.is_busy {
            self.again = Some(change.rereads || self.again.unwrap_or_default());
            return Some(reading);
        }
        let jobs = self.jobs.as_ref()?;
        match jobs.send((self.machine.take(), change)) {
            Ok(()) => (self.is_busy, self.begun) = (true, reading),
            Err(refused) => {
                self.machine = refused.0.0;
                tracing::error!("the clients cannot be read again: {GONE}");
                return None;
            }
        }
        Some(reading)
    }

    pub(super) fn wait(&mut self) -> Option<Reloaded> {
        let outcome = self.is_busy.then(|| self.outcomes.recv().ok()).flatten()?;
        self.take(outcome).ok()
    }

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

    fn take(&mut self, (machine, reloaded): Outcome) -> Result<Reloaded, String> {
        (self.machine, self.is_busy) = (machine, false);
        let log = |error: &String| tracing::error!("nothing was changed: {error}");
        reloaded.inspect_err(log)
    }

    pub(super) fn take_due_again(&mut self) -> Option<bool> {
        self.again.take_if(|_| !self.is_busy)
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.is_busy && self.again.is_none()
    }

    pub(super) fn stop(&mut self) {
        if self.is_busy
            && let Ok((machine, _)) = self.outcomes.recv()
        {
            self.machine = machine;
        }
        self.jobs = None;
        self.thread.take().map(JoinHandle::join);
    }
}

const GONE: &str = "the thread that reloads is gone";

fn merged(
    file: &ServerReload,
    change: &ReloadRequest,
    own: Option<&[IpNet]>,
) -> (Reloaded, LeftOut) {
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

fn log_left_out(logged: &mut LeftOut, left_out: LeftOut) {
    if *logged == left_out {
        return;
    }
    *logged = left_out;
    let LeftOut { prefixes, first, members } = &*logged;
    let first = first.as_ref().map(|(name, prefix)| format!("{prefix} of {name}"));
    tracing::warn!(
        members,
        prefixes,
        first,
        "some entries of the fleet are ignored: members that have no addresses, or share keys or \
         addresses with others, are not admitted, and prefixes outside of `addresses` and \
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

    fn counts(addresses: &[&str], accepted: &[&str], is_proxy: bool) -> (Vec<IpNet>, LeftOut) {
        let peer = Peer { tenant: "home".to_owned(), ..Peer::new("bus-1", nets(addresses)) };
        let key = Identity::from_seed([1; 32]).public_key();
        let members = Members { boxes: vec![(key, peer)], proxies: Vec::new() };
        let change =
            ReloadRequest { rereads: false, members: members.into(), peers: Arc::default() };
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
        assert_eq!(counts(&all, &[], true), (nets(&all), LeftOut::default()));
    }
}
