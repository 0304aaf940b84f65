//! What most bytes are loaded for: web pages, video, and files.

use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;
use std::time::Duration;

use roadweave_types::{Instant, SplitMix64};
use roadweave_wire::StreamPriority;

use crate::web::{Browser, ConnectionId, News, REQUEST, Visitor};
use crate::world::World;

/// What is loaded (RAVEN section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// [`PAGES`], one after the other, with pauses.
    Web,
    /// 50 MB in chunks of 1 MB, one after the other over one connection.
    Video,
    /// 2.4 MB in one piece.
    Download,
    /// 50 MB in one piece: a video whose player never lets the queue run empty.
    Unbroken,
}

/// The pages of the web, by the number of their requests and their bytes, thousands: at each 20th
/// of all pages.
///
/// Source: the quantiles of `nb_request` and `response_size` of the EcoIndex
/// (github.com/cnumr/ecoindex_reference, ecoindex_reference.json), which are those of the HTTP
/// Archive. A page of many requests is taken to be one of many bytes.
pub const PAGES: [(u32, u32); 19] = [
    (2, 1),
    (15, 145),
    (25, 320),
    (34, 479),
    (42, 632),
    (49, 783),
    (56, 938),
    (63, 1_099),
    (70, 1_265),
    (78, 1_448),
    (86, 1_648),
    (95, 1_876),
    (105, 2_142),
    (117, 2_465),
    (130, 2_866),
    (147, 3_402),
    (170, 4_156),
    (205, 5_400),
    (281, 8_038),
];

impl Load {
    /// Everything that is loaded.
    pub const ALL: [Self; 4] = [Self::Web, Self::Video, Self::Download, Self::Unbroken];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Video => "video",
            Self::Download => "download",
            Self::Unbroken => "unbroken",
        }
    }

    /// How many parts are loaded one after the other.
    pub const fn parts(self) -> u64 {
        match self {
            Self::Web => PAGES.len() as u64,
            Self::Video => 50,
            Self::Download | Self::Unbroken => 1,
        }
    }

    /// The pause between two parts.
    const fn pause(self) -> Duration {
        match self {
            Self::Web => Duration::from_secs(5),
            Self::Video | Self::Download | Self::Unbroken => Duration::ZERO,
        }
    }

    /// The answers of a part: the first is wanted before all others.
    fn answers(self, part: u64, seed: u64) -> VecDeque<u32> {
        match self {
            Self::Web => page(PAGES[part as usize % PAGES.len()], SplitMix64::word(seed, part)),
            Self::Video => VecDeque::from([1_000_000]),
            Self::Download => VecDeque::from([2_400_000]),
            Self::Unbroken => VecDeque::from([50_000_000]),
        }
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|load| load.name() == name);
        named.ok_or_else(|| format!("no load; there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The answers of a page with so many requests and thousands of bytes: sizes are exponential.
pub(super) fn page((requests, kilobytes): (u32, u32), seed: u64) -> VecDeque<u32> {
    let mut random = SplitMix64::new(seed);
    let weights: Vec<f64> = (0..requests).map(|_| -(1.0 - random.unit()).ln() + 0.01).collect();
    let bytes = f64::from(kilobytes) * 1e3 / weights.iter().sum::<f64>();
    weights.iter().map(|weight| ((weight * bytes) as u32).max(50)).collect()
}

/// Somebody who loads it.
#[derive(Debug)]
pub(super) struct Loading {
    load: Load,
    seed: u64,
    part: u64,
    begun: Instant,
    /// When the next part begins, while none is loaded.
    begins: Option<Instant>,
    waiting: VecDeque<u32>,
    /// Whether the part's first answer is there.
    has_first: bool,
    /// By connection of this part: bytes of the answer that are missing.
    open: BTreeMap<ConnectionId, u64>,
    took: Vec<Duration>,
}

impl Loading {
    pub(super) fn new(load: Load, start: Instant, seed: u64) -> Self {
        Self {
            load,
            seed,
            part: 0,
            begun: start,
            begins: Some(start),
            waiting: VecDeque::new(),
            has_first: false,
            open: BTreeMap::new(),
            took: Vec::new(),
        }
    }

    /// How long each part took that came whole.
    pub(super) fn took(&self) -> &[Duration] {
        &self.took
    }

    /// Asks for what is waiting, over connections that are free or new.
    fn ask(&mut self, world: &mut World, browser: &mut Browser) {
        let most = if self.has_first { CONNECTIONS } else { 1 };
        let free: Vec<ConnectionId> =
            self.open.iter().filter(|(_, missing)| **missing == 0).map(|(id, _)| *id).collect();
        let mut free = free.into_iter();
        let busy = |open: &BTreeMap<_, u64>| open.values().filter(|missing| **missing > 0).count();
        while busy(&self.open) < most
            && let Some(answer) = self.waiting.front().copied()
        {
            let id = free.next().or_else(|| browser.open(world, StreamPriority::new(3, true)));
            let Some(id) = id else { return };
            browser.ask(world, id, REQUEST, answer);
            self.open.insert(id, u64::from(answer));
            self.waiting.pop_front();
        }
    }

    fn on_came(&mut self, world: &mut World, browser: &mut Browser, id: ConnectionId, bytes: u64) {
        let Some(missing) = self.open.get_mut(&id) else { return };
        *missing = missing.saturating_sub(bytes);
        self.has_first |= *missing == 0;
        let now = world.now();
        if self.waiting.is_empty() && self.open.values().all(|missing| *missing == 0) {
            self.took.push(now.since(self.begun));
            self.part += 1;
            let goes_on = self.part < self.load.parts();
            self.begins = goes_on.then(|| now + self.load.pause());
            // A video's connection serves all of it.
            if self.load != Load::Video || !goes_on {
                let open = std::mem::take(&mut self.open);
                open.into_keys().for_each(|id| browser.finish(world, id));
            }
        }
    }
}

impl Visitor for Loading {
    fn poll_timeout(&self) -> Option<Instant> {
        self.begins
    }

    fn act(&mut self, world: &mut World, browser: &mut Browser, news: Vec<News>) {
        for news in news {
            match news {
                News::Came(id, bytes) => self.on_came(world, browser, id, bytes),
                // What it was to bring never comes: the part is not whole.
                News::Over(id) => _ = self.open.remove(&id),
            }
        }
        if let Some(begins) = self.begins.take_if(|at| *at <= world.now()) {
            self.begun = begins;
            self.has_first = false;
            self.waiting = self.load.answers(self.part, self.seed);
        }
        self.ask(world, browser);
    }

    fn goes_on(&self) -> bool {
        self.part < self.load.parts()
    }
}

/// Connections of a browser to one host.
const CONNECTIONS: usize = 6;
