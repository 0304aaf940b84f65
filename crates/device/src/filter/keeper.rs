//! A thread that keeps packet filters in place, so that `nft`, which takes some 20 ms, pauses no
//! data plane.
//!
//! ```text
//! set(options) ──► newest wins ──► replace          notices, or every 2 s ──► look ──► put back
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roadweave_types::DropCounters;

use super::chain::counter;
use super::nftables::{Nftables, drain_notices, open_notices};
use super::{FilterOptions, Filters, ruleset, shares};
use crate::{DeviceError, Instance, Interest, Poller, Token, Waker};

/// Keeps the filters of one instance in place: what another program removes or changes is put back.
/// Dropping it removes them, as [`Filters`] does.
#[derive(Debug)]
pub struct FilterKeeper {
    /// The tables, and what each had counted when it could last be read.
    counted: Vec<(String, BTreeMap<String, u64>)>,
    requests: Option<Sender<Request>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    wanted: Option<FilterOptions>,
    nftables: Nftables,
}

/// Other filters, and who waits for them.
struct Request {
    options: FilterOptions,
    answer: Option<Sender<Result<(), DeviceError>>>,
}

impl FilterKeeper {
    /// Starts without any filters, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel lacks netfilter, or the process file descriptors or threads.
    pub fn start(instance: &Instance) -> Result<Self, DeviceError> {
        let (requests, receiver) = mpsc::channel();
        let waker = Waker::new()?;
        let nftables = Nftables::open()?;
        // Before the first filters, so that nothing falls between both.
        let notices = open_notices()
            .inspect_err(
                |error| tracing::info!(%error, "looked at every {} s instead", LOOK.as_secs()),
            )
            .ok();
        let (at_work, woken) = (instance.clone(), waker.clone());
        let thread = std::thread::Builder::new()
            .name("filters".to_owned())
            .spawn(move || match Worker::new(at_work, receiver, woken, notices) {
                Ok(mut worker) => worker.run(),
                Err(error) => tracing::error!("the packet filters are not kept: {error}"),
            })
            .map_err(|error| DeviceError::system("start a thread", error))?;
        let tables = [instance.filter_table(), instance.shares_table(), instance.answers_table()];
        Ok(Self {
            requests: Some(requests),
            waker,
            thread: Some(thread),
            wanted: None,
            nftables,
            counted: tables.map(|table| (table, BTreeMap::new())).to_vec(),
        })
    }

    /// Whether filters were ever wanted.
    pub fn is_set(&self) -> bool {
        self.wanted.is_some()
    }

    /// Puts others in the place of the filters, soon; a failure is logged and tried again.
    pub fn set(&mut self, options: FilterOptions) {
        if self.wanted.as_ref() != Some(&options) {
            self.request(options, None);
        }
    }

    /// Puts others in the place of the filters and waits until they are there. While inner packets
    /// flow use [`FilterKeeper::set`].
    ///
    /// # Errors
    /// As [`Filters::install`]; it is tried again all the same, as long as this lives.
    pub fn set_and_wait(&mut self, options: FilterOptions) -> Result<(), DeviceError> {
        if self.wanted.as_ref() == Some(&options) {
            return Ok(());
        }
        let (sender, answer) = mpsc::channel();
        self.request(options, Some(sender));
        answer.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
            let why = format!("packet filters were not in place within {} s", TIMEOUT.as_secs());
            Err(DeviceError::Unavailable { why })
        })
    }

    /// Puts the filters in place again, and turns forwarding on for interfaces that are new.
    pub fn refresh(&mut self) {
        if let Some(options) = self.wanted.clone() {
            self.request(options, None);
        }
    }

    /// The packets that the filters have dropped, by reason.
    pub fn drops(&mut self) -> DropCounters {
        // Others may keep the kernel from telling, or have taken the table away for a moment.
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
        if let Some(requests) = &self.requests {
            // A worker that could not start has said so, and nobody waits long for it.
            let _ = requests.send(Request { options, answer });
        }
        self.waker.wake();
    }
}

impl Drop for FilterKeeper {
    fn drop(&mut self) {
        self.requests = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It cannot be told more than it has logged.
            let _ = thread.join();
        }
    }
}

struct Worker {
    instance: Instance,
    requests: Receiver<Request>,
    waker: Waker,
    notices: Option<OwnedFd>,
    poller: Poller,
    filters: Option<Filters>,
    wanted: Option<FilterOptions>,
    /// The last attempt failed.
    failed: bool,
    last_repair: Option<Instant>,
    /// When a failure or a repair was told, so that no quarrel fills the log.
    last_told: Option<Instant>,
}

impl Worker {
    fn new(
        instance: Instance,
        requests: Receiver<Request>,
        waker: Waker,
        notices: Option<OwnedFd>,
    ) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::Read)?;
        if let Some(notices) = &notices {
            poller.add(notices, NOTICES, Interest::Read)?;
        }
        Ok(Self {
            instance,
            requests,
            waker,
            notices,
            poller,
            filters: None,
            wanted: None,
            failed: false,
            last_repair: None,
            last_told: None,
        })
    }

    /// Works until nobody can ask for more; then the filters are dropped.
    fn run(&mut self) {
        loop {
            let timeout = self.wanted.as_ref().map(|_| LOOK);
            if let Err(error) = self.poller.wait(timeout) {
                return tracing::error!(%error, "the packet filters are no longer kept");
            }
            self.waker.clear();
            let (mut newest, mut answers) = (None, Vec::new());
            let ended = loop {
                match self.requests.try_recv() {
                    Ok(Request { options, answer }) => {
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

    /// Brings the kernel to what is wanted.
    fn apply(&mut self, answers: Vec<Sender<Result<(), DeviceError>>>) {
        let Some(options) = &self.wanted else { return };
        let result = match &mut self.filters {
            Some(filters) => filters.replace(options),
            none => Filters::install(&self.instance, options).map(|filters| *none = Some(filters)),
        };
        // Our own change is no news.
        self.notices.as_ref().map(drain_notices);
        let again = std::mem::replace(&mut self.failed, result.is_err());
        match (result, answers.into_iter().next_back()) {
            (Ok(()), answer) => {
                if again {
                    tracing::info!("the packet filters are in place");
                }
                answer.map(|answer| answer.send(Ok(())));
            }
            (Err(error), Some(answer)) => {
                self.last_told = Some(Instant::now());
                // Whoever waited tells it.
                let _ = answer.send(Err(error));
            }
            (Err(error), None) if self.may_tell(FAILURE_REMINDER) => {
                tracing::warn!(
                    "the packet filters are not as they should be, trying again: {error}"
                );
            }
            (Err(_), None) => {}
        }
    }

    /// Puts back what somebody has changed.
    fn look(&mut self) {
        // A few notices belong to one change; what comes later is seen at the next look.
        if self.notices.as_ref().is_some_and(drain_notices) {
            std::thread::sleep(SETTLE);
            self.notices.as_ref().map(drain_notices);
        }
        if self.failed {
            return self.apply(Vec::new());
        }
        if self.filters.as_mut().is_none_or(Filters::is_in_place) {
            return;
        }
        // Others may be as stubborn as this.
        if let Some(last) = self.last_repair {
            std::thread::sleep(REPAIR_INTERVAL.saturating_sub(last.elapsed()));
        }
        self.last_repair = Some(Instant::now());
        self.apply(Vec::new());
        if !self.failed && self.may_tell(REPAIR_REMINDER) {
            tracing::warn!(
                table = self.instance.filter_table(),
                "another program had changed or removed the packet filters of this tunnel; they are \
                 back in place"
            );
        }
    }

    /// Whether it is time for another line about trouble.
    fn may_tell(&mut self, interval: Duration) -> bool {
        let may = self.last_told.is_none_or(|at| at.elapsed() >= interval);
        if may {
            self.last_told = Some(Instant::now());
        }
        may
    }
}

const WAKER: Token = Token(0);
const NOTICES: Token = Token(1);
/// How often the filters are looked at when no notice comes.
const LOOK: Duration = Duration::from_secs(2);
/// How long a change by others may take to be whole.
const SETTLE: Duration = Duration::from_millis(5);
/// The least time between two repairs.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two lines about repairs.
const REPAIR_REMINDER: Duration = Duration::from_secs(10);
/// The least time between two lines about failures.
const FAILURE_REMINDER: Duration = Duration::from_secs(600);
/// How long to wait for `nft`.
const TIMEOUT: Duration = Duration::from_secs(10);
