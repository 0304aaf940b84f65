//! Captive portal detection: when an uplink's network is probed for a login page. An uplink without
//! a validated path is probed after 1 s, then after 10 s, doubling to 5 min. An uplink with a
//! validated path is not probed. Each uplink has one thread at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_linux::lookup::LookupRequest;
use roadweave_linux::portal::{self, Finding};
use roadweave_linux::{Uplink, Waker};
use roadweave_proto::{Instant, ProbeUrl, UplinkId};
use roadweave_tunnel::{Client, Portal};

use crate::driver::resolvers::Resolvers;

/// How long a new uplink may take to reach the server before it is probed.
const GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(300);
const THREADS_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Portals {
    url: Option<ProbeUrl>,
    waker: Waker,
    sender: Sender<(UplinkId, Finding)>,
    findings: Receiver<(UplinkId, Finding)>,
    uplinks: BTreeMap<UplinkId, PortalProbe>,
    threads: BTreeSet<UplinkId>,
}

#[derive(Debug)]
struct PortalProbe {
    index: u32,
    addresses: Vec<IpNet>,
    due: Instant,
    pause: Duration,
    /// Dropping it cancels the thread; `None` if no answer is expected.
    interest: Option<Arc<()>>,
}

impl Portals {
    pub(super) fn new(url: Option<ProbeUrl>, waker: Waker) -> Self {
        let (sender, findings) = channel();
        let (uplinks, threads) = (BTreeMap::new(), BTreeSet::new());
        Self { url, waker, sender, findings, uplinks, threads }
    }

    pub(super) fn set_probe(&mut self, client: &mut Client, now: Instant, url: Option<ProbeUrl>) {
        if self.set_url(now, url) {
            self.uplinks.keys().for_each(|uplink| client.set_portal(now, *uplink, None));
        }
    }

    /// Cancels probes under way. Returns whether the page changed.
    fn set_url(&mut self, now: Instant, url: Option<ProbeUrl>) -> bool {
        if self.url == url {
            return false;
        }
        self.url = url;
        for of in self.uplinks.values_mut() {
            (of.due, of.pause, of.interest) = (now, PAUSE, None);
        }
        true
    }

    pub(super) fn set_uplink(&mut self, now: Instant, uplink: &Uplink) -> bool {
        let known = self.uplinks.get(&uplink.id);
        if known.is_some_and(|of| of.index == uplink.index && of.addresses == uplink.addresses) {
            return false;
        }
        let of = PortalProbe {
            index: uplink.index,
            addresses: uplink.addresses.clone(),
            due: now + GRACE,
            pause: PAUSE,
            interest: None,
        };
        self.uplinks.insert(uplink.id, of);
        true
    }

    pub(super) fn remove_uplink(&mut self, uplink: UplinkId) {
        self.uplinks.remove(&uplink);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.url.is_none() || self.threads.len() >= THREADS_MAX {
            return None;
        }
        let idle = self.uplinks.iter().filter(|(id, _)| !self.threads.contains(id));
        idle.map(|(_, of)| of.due).min()
    }

    pub(super) fn handle_timeout(&mut self, client: &Client, now: Instant, names: &mut Resolvers) {
        for id in self.due(now) {
            let name = self.url.as_ref().map(|url| url.server().clone());
            let request = match client.is_validated(id) {
                true => None,
                false => names.request(now, id, name.into_iter().collect()),
            };
            match request {
                Some(request) => self.ask(now, id, request),
                None => self.rest(now, id),
            }
        }
    }

    pub(super) fn on_wake(&mut self, client: &mut Client, now: Instant) {
        for (uplink, finding) in self.poll(now) {
            tracing::debug!(uplink = uplink.0, ?finding, "checked for a login page");
            match finding {
                Finding::Open => client.set_portal(now, uplink, None),
                Finding::Portal(url) => client.set_portal(now, uplink, Some(Portal { url })),
                Finding::Nothing(_) => {}
            }
        }
    }

    fn due(&self, now: Instant) -> Vec<UplinkId> {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let is_due =
            |(id, of): &(&UplinkId, &PortalProbe)| of.due <= now && !self.threads.contains(id);
        self.uplinks.iter().filter(is_due).map(|(id, _)| *id).collect()
    }

    fn rest(&mut self, now: Instant, id: UplinkId) {
        if let Some(of) = self.uplinks.get_mut(&id) {
            (of.due, of.pause) = (now + PAUSE, PAUSE);
        }
    }

    fn ask(&mut self, now: Instant, id: UplinkId, request: LookupRequest) {
        let (Some(url), Some(of)) = (self.url.clone(), self.uplinks.get_mut(&id)) else { return };
        (of.due, of.pause) = (now + of.pause, (of.pause * 2).min(PAUSE_MAX));
        if self.threads.len() >= THREADS_MAX {
            return;
        }
        let interest = Arc::new(());
        let weak = Arc::downgrade(&interest);
        of.interest = Some(interest);
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let thread = std::thread::Builder::new().name("portal".into()).spawn(move || {
            let _ = sender.send((id, portal::run(&url, request, &weak)));
            waker.wake();
        });
        match thread {
            Ok(_) => _ = self.threads.insert(id),
            Err(error) => tracing::debug!(%error, "cannot start a thread to look for a login page"),
        }
    }

    fn poll(&mut self, now: Instant) -> Vec<(UplinkId, Finding)> {
        let mut found = Vec::new();
        while let Ok((id, finding)) = self.findings.try_recv() {
            self.threads.remove(&id);
            let Some(of) = self.uplinks.get_mut(&id) else { continue };
            if of.interest.take().is_some() {
                // A full pause follows, however long the probe took.
                of.due = of.due.max(now + PAUSE);
                found.push((id, finding));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use roadweave_linux::Gateway;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn uplink(index: u32, address: &str) -> Uplink {
        let addresses = vec![address.parse().expect("an address")];
        let uplink = Uplink::new(UplinkId(1), "wlan0", index, addresses);
        Uplink { gateway_v4: Some(Gateway::Direct), ..uplink }
    }

    fn portals() -> Portals {
        let url = "http://probe.example/".parse().expect("an address");
        let mut portals = Portals::new(Some(url), Waker::new().expect("a waker"));
        assert!(portals.set_uplink(at(0), &uplink(3, "10.0.0.2/24")));
        portals
    }

    fn wait(portals: &mut Portals) {
        let of = portals.uplinks.get_mut(&UplinkId(1)).expect("it is there");
        of.interest = Some(Arc::new(()));
    }

    fn asked(portals: &mut Portals, until: u64) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(due) = portals.poll_timeout().filter(|due| *due < at(until)) {
            for id in portals.due(due) {
                times.push(due.since(Instant::ZERO).as_millis() as u64);
                let of = portals.uplinks.get_mut(&id).expect("it is there");
                (of.due, of.pause) = (due + of.pause, (of.pause * 2).min(PAUSE_MAX));
            }
        }
        times
    }

    #[test]
    fn checks_become_rare_and_restart_in_another_network() {
        let mut portals = portals();
        assert!(!portals.set_uplink(at(0), &uplink(3, "10.0.0.2/24")), "nothing is new");
        let seconds = |times: Vec<u64>| times.iter().map(|ms| ms / 1_000).collect::<Vec<_>>();
        let times = seconds(asked(&mut portals, 1_300_000));
        assert_eq!(times, [1, 11, 31, 71, 151, 311, 611, 911, 1_211]);
        assert!(portals.set_uplink(at(1_300_000), &uplink(3, "10.9.0.2/24")));
        assert_eq!(seconds(asked(&mut portals, 1_320_000)), [1_301, 1_311]);
        portals.rest(at(1_320_000), UplinkId(1));
        assert_eq!(portals.poll_timeout(), Some(at(1_330_000)));
        portals.remove_uplink(UplinkId(1));
        assert_eq!(portals.poll_timeout(), None);
    }

    #[test]
    fn another_page_is_asked_for_at_once_and_what_the_first_says_then_counts_for_nothing() {
        let mut portals = portals();
        assert_eq!(asked(&mut portals, 200_000).len(), 5);
        wait(&mut portals);
        let other = Some("http://other.example/".parse().expect("an address"));
        assert!(portals.set_url(at(200_000), other.clone()));
        assert!(!portals.set_url(at(200_000), other), "nothing is new");
        portals.sender.send((UplinkId(1), Finding::Portal(None))).expect("it is heard");
        assert!(portals.poll(at(200_000)).is_empty());
        assert_eq!(asked(&mut portals, 215_000), [200_000, 210_000]);
        assert!(portals.set_url(at(215_000), None));
        assert_eq!((portals.poll_timeout(), portals.due(at(900_000))), (None, Vec::new()));
    }

    #[test]
    fn what_was_found_of_another_network_counts_for_nothing() {
        let mut portals = portals();
        wait(&mut portals);
        portals.set_uplink(at(5), &uplink(3, "10.9.0.2/24"));
        portals.sender.send((UplinkId(1), Finding::Open)).expect("it is heard");
        assert!(portals.poll(at(10)).is_empty());
        wait(&mut portals);
        portals.sender.send((UplinkId(1), Finding::Open)).expect("it is heard");
        assert_eq!(portals.poll(at(10)), [(UplinkId(1), Finding::Open)]);
    }
}
