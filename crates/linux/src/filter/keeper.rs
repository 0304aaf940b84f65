//! A thread that keeps packet filters in place, so that `nft` (some 20 ms) does not block the data
//! plane. It checks them after notices of the kernel, and every 2 s.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roadweave_proto::DropCounters;

use super::chain::counter;
use super::nft::LIMIT;
use super::nftables::{Nftables, drain_notices, open_notices};
use super::{FilterOptions, Filters, ruleset, shares};
use crate::threads::{lock, spawn};
use crate::{DeviceError, Instance, Interest, Poller, Token, Waker};

/// Restores filters when another program changes them. Dropping it removes them.
#[derive(Debug)]
pub struct FilterKeeper {
    counted: Vec<(String, BTreeMap<String, u64>)>,
    requests: Option<Sender<FilterRequest>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    wanted: Option<FilterOptions>,
    number: u64,
    progress: Arc<Mutex<FilterProgress>>,
    nftables: Nftables,
}

#[derive(Debug, Default)]
struct FilterProgress {
    in_place: u64,
    failure: Option<String>,
    are_lost: bool,
}

struct FilterRequest {
    number: u64,
    options: FilterOptions,
    answer: Option<Sender<Result<(), DeviceError>>>,
}

impl FilterKeeper {
    /// Starts without filters, in the calling thread's namespace. Wakes `done` after each attempt.
    pub fn start(instance: &Instance, done: Option<Waker>) -> Result<Self, DeviceError> {
        let (requests, receiver) = mpsc::channel();
        let waker = Waker::new()?;
        let nftables = Nftables::open()?;
        // Before the first filters, so that no change between is missed.
        let notices = open_notices()
            .inspect_err(|error| {
                tracing::info!(
                    %error,
                    "no notices of changes to the packet filters; they are checked every {} s \
                     instead",
                    LOOK.as_secs()
                )
            })
            .ok();
        let (at_work, woken) = (instance.clone(), waker.clone());
        let progress = Arc::new(Mutex::new(FilterProgress::default()));
        let report = progress.clone();
        let (sender, started) = mpsc::channel();
        let work = move || match FilterWorker::new(at_work, receiver, woken, notices, report, done)
        {
            Ok(mut worker) => {
                let _ = sender.send(Ok(()));
                worker.run();
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let thread = spawn("filters", work)?;
        started
            .recv()
            .map_err(|_| DeviceError::system("start a thread", io::ErrorKind::Other))??;
        let tables = [instance.filter_table(), instance.shares_table(), instance.answers_table()];
        Ok(Self {
            requests: Some(requests),
            waker,
            thread: Some(thread),
            wanted: None,
            number: 0,
            progress,
            nftables,
            counted: tables.map(|table| (table, BTreeMap::new())).to_vec(),
        })
    }

    /// The newest request whose filters are in place, counted from 1.
    pub fn in_place(&self) -> u64 {
        lock(&self.progress).in_place
    }

    /// Whether any filters are in place, those of the newest request or older ones.
    pub fn hold(&self) -> bool {
        let progress = lock(&self.progress);
        progress.in_place > 0 && !progress.are_lost
    }

    /// Why the last attempt failed; `None` after a success.
    pub fn failure(&self) -> Option<String> {
        lock(&self.progress).failure.clone()
    }

    /// Requests filters; failures are logged and retried. Returns a number for [`Self::in_place`].
    pub fn set(&mut self, options: FilterOptions) -> u64 {
        if self.wanted.as_ref() != Some(&options) {
            self.request(options, None);
        }
        self.number
    }

    /// Requests other filters and waits until they are in place; for the start only, since an event
    /// loop must not wait for `nft`. Fails as [`Filters::install`] does; the request is retried.
    pub fn set_and_wait(&mut self, options: FilterOptions) -> Result<(), DeviceError> {
        if self.wanted.as_ref() == Some(&options) {
            return Ok(());
        }
        let (sender, answer) = mpsc::channel();
        self.request(options, Some(sender));
        answer.recv_timeout(LIMIT + SETTLE).unwrap_or_else(|_| {
            let why = format!("the packet filters were not installed within {} s", LIMIT.as_secs());
            Err(DeviceError::Unavailable { why })
        })
    }

    /// Applies the filters again, and turns forwarding on for new interfaces.
    pub fn refresh(&mut self) {
        if let Some(options) = self.wanted.clone() {
            self.request(options, None);
        }
    }

    /// The packets that the filters dropped, by reason.
    pub fn drops(&mut self) -> DropCounters {
        let mut drops = DropCounters::default();
        for (table, counted) in &mut self.counted {
            counted.extend(self.nftables.counters(table).unwrap_or_default());
            for reason in ruleset::COUNTED.into_iter().chain(shares::COUNTED) {
                drops.add(reason, counted.get(&counter(reason)).copied().unwrap_or(0));
            }
        }
        drops
    }

    fn request(&mut self, options: FilterOptions, answer: Option<Sender<Result<(), DeviceError>>>) {
        self.wanted = Some(options.clone());
        self.number += 1;
        if let Some(requests) = &self.requests {
            let _ = requests.send(FilterRequest { number: self.number, options, answer });
        }
        self.waker.wake();
    }
}

impl Drop for FilterKeeper {
    fn drop(&mut self) {
        self.requests = None;
        self.waker.wake();
        self.thread.take().map(JoinHandle::join);
    }
}

struct FilterWorker {
    instance: Instance,
    progress: Arc<Mutex<FilterProgress>>,
    done: Option<Waker>,
    number: u64,
    requests: Receiver<FilterRequest>,
    waker: Waker,
    notices: Option<OwnedFd>,
    poller: Poller,
    filters: Option<Filters>,
    wanted: Option<FilterOptions>,
    failed: bool,
    last_repair: Option<Instant>,
    last_off: Option<Instant>,
    last_logged: Option<Instant>,
    last_failure: Option<Instant>,
}

impl FilterWorker {
    fn new(
        instance: Instance,
        requests: Receiver<FilterRequest>,
        waker: Waker,
        notices: Option<OwnedFd>,
        progress: Arc<Mutex<FilterProgress>>,
        done: Option<Waker>,
    ) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::Read)?;
        if let Some(notices) = &notices {
            poller.add(notices, NOTICES, Interest::Read)?;
        }
        Ok(Self {
            instance,
            progress,
            done,
            number: 0,
            requests,
            waker,
            notices,
            poller,
            filters: None,
            wanted: None,
            failed: false,
            last_repair: None,
            last_off: None,
            last_logged: None,
            last_failure: None,
        })
    }

    fn run(&mut self) {
        loop {
            let timeout = self.wanted.as_ref().map(|_| LOOK);
            if let Err(error) = self.poller.wait(timeout) {
                return tracing::error!(%error, "the packet filters are no longer monitored");
            }
            self.waker.clear();
            let (mut newest, mut answers) = (None, Vec::new());
            let ended = loop {
                match self.requests.try_recv() {
                    Ok(FilterRequest { number, options, answer }) => {
                        self.number = number;
                        newest = Some(options);
                        answers.extend(answer);
                    }
                    Err(error) => break error == mpsc::TryRecvError::Disconnected,
                }
            };
            if ended {
                return;
            }
            match newest {
                Some(options) => {
                    self.wanted = Some(options);
                    self.apply(answers);
                }
                None => self.look(),
            }
        }
    }

    fn apply(&mut self, answers: Vec<Sender<Result<(), DeviceError>>>) {
        let Some(options) = &self.wanted else { return };
        let result = match &mut self.filters {
            Some(filters) => filters.replace(options),
            none => Filters::install(&self.instance, options).map(|filters| *none = Some(filters)),
        };
        self.notices.as_ref().map(drain_notices);
        let again = std::mem::replace(&mut self.failed, result.is_err());
        self.report(result.as_ref().err());
        match (result, answers.into_iter().next_back()) {
            (Ok(()), answer) => {
                if again {
                    tracing::info!("the packet filters are installed again");
                }
                answer.map(|answer| answer.send(Ok(())));
            }
            (Err(error), Some(answer)) => {
                self.last_failure = Some(Instant::now());
                let _ = answer.send(Err(error));
            }
            (Err(error), None) if is_due(&mut self.last_failure, FAILURE_REMINDER) => {
                tracing::warn!("the packet filters could not be installed, trying again: {error}");
            }
            (Err(_), None) => {}
        }
    }

    fn report(&self, failure: Option<&DeviceError>) {
        let mut progress = lock(&self.progress);
        progress.failure = failure.map(ToString::to_string);
        if failure.is_none() {
            (progress.in_place, progress.are_lost) = (self.number, false);
        }
        drop(progress);
        self.done.iter().for_each(Waker::wake);
    }

    fn look(&mut self) {
        // One change causes several notices; later ones count at the next look.
        if self.notices.as_ref().is_some_and(drain_notices) {
            std::thread::sleep(SETTLE);
            self.notices.as_ref().map(drain_notices);
        }
        let are_gone = self.filters.as_mut().is_some_and(|filters| !filters.is_in_place());
        if self.failed {
            self.apply(Vec::new());
            return self.give_up_if(are_gone);
        }
        let is_off = self.filters.as_ref().is_some_and(Filters::is_forwarding_off);
        if !is_off && !are_gone {
            return;
        }
        // Limits a fight with a program that is equally persistent.
        if let Some(last) = self.last_repair {
            std::thread::sleep(REPAIR_INTERVAL.saturating_sub(last.elapsed()));
        }
        self.last_repair = Some(Instant::now());
        self.apply(Vec::new());
        self.give_up_if(are_gone);
        if is_off && !self.failed {
            if is_due(&mut self.last_off, REPAIR_REMINDER) {
                tracing::warn!("another program disabled forwarding; it is enabled again");
            }
        } else if !self.failed && is_due(&mut self.last_logged, REPAIR_REMINDER) {
            tracing::warn!(
                table = self.instance.filter_table(),
                "another program changed or removed the packet filters of this tunnel; they are \
                 restored"
            );
        }
    }

    fn give_up_if(&mut self, are_gone: bool) {
        if !self.failed || !are_gone {
            return;
        }
        let are_lost = std::mem::replace(&mut lock(&self.progress).are_lost, true);
        if are_lost {
            return;
        }
        tracing::warn!(
            "another program changed or removed the packet filters, and they could not be \
             restored: until they are, nothing is forwarded and a client uses no uplink"
        );
        self.filters.iter_mut().for_each(Filters::stop_forwarding);
        self.done.iter().for_each(Waker::wake);
    }
}

fn is_due(last: &mut Option<Instant>, interval: Duration) -> bool {
    let is_due = last.is_none_or(|at| at.elapsed() >= interval);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

const WAKER: Token = Token(0);
const NOTICES: Token = Token(1);
const LOOK: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_millis(5);
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);
const REPAIR_REMINDER: Duration = Duration::from_secs(10);
const FAILURE_REMINDER: Duration = Duration::from_secs(600);
