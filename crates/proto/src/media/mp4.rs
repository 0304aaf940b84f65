//! Where the first picture of a video ends, found while the video passes by (ISO/IEC 14496-12).
//!
//! ```text
//! ftyp | moov: where its samples are      | mdat | ...          a file
//! ftyp | moov with mvex                   |                     an initialization segment
//! styp | moof: where its samples are      | mdat | moof | mdat  a segment
//! ```
//!
//! Boxes are read in pieces of any size. Kept are the enclosing boxes, and at most [`LEAF_MAX`]
//! bytes of a box with samples. It ends at bytes that are no boxes, and after [`FRAME_MAX`] bytes.

mod samples;

use self::samples::{FragmentTrack, MovieTrack};

/// Most bytes of a video that count as its first picture.
pub const FRAME_MAX: u64 = 1 << 20;
/// Bounds the start of a file, so that later places do not overflow.
const START_MAX: u64 = 1 << 62;

const LEAF_MAX: usize = 512;
const DEPTH_MAX: usize = 8;
const BEGINNINGS: [&BoxKind; 10] =
    [b"ftyp", b"styp", b"moov", b"moof", b"sidx", b"emsg", b"prft", b"free", b"skip", b"pdin"];
const TRACKS_MAX: usize = 8;

/// Where the first picture ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameEnd {
    /// Not found yet.
    #[default]
    Unknown,
    /// Before this offset in the file.
    At(u64),
    /// Not to be found.
    Nowhere,
}

/// Finds the end of the first picture.
#[derive(Debug, Default)]
pub struct FirstFrame {
    start: u64,
    at: u64,
    end: FrameEnd,
    only_file: bool,
    is_file: bool,
    is_first: bool,
    around: Vec<(BoxKind, u64)>,
    place: BoxState,
    kept: Vec<u8>,
    tracks: Vec<MovieTrack>,
    is_fragmented: bool,
    fragment: u64,
    fragment_tracks: Vec<FragmentTrack>,
}

type BoxKind = [u8; 4];

#[derive(Clone, Copy, Debug, Default)]
enum BoxState {
    #[default]
    Head,
    /// In a box with samples; `wanted` bytes of it are kept.
    Leaf { kind: BoxKind, end: u64, wanted: usize },
    /// In an unused box, up to this offset.
    Skip(u64),
}

impl FirstFrame {
    /// The first picture of content that begins at `start` of its file.
    pub fn new(start: u64) -> Self {
        let start = start.min(START_MAX);
        Self { start, at: start, is_first: true, ..Self::default() }
    }

    /// As [`FirstFrame::new`], but only in the beginning of a file, not in a later segment.
    pub fn of_file(start: u64) -> Self {
        Self { only_file: true, ..Self::new(start) }
    }

    /// The end of the first picture, as far as known.
    pub fn end(&self) -> FrameEnd {
        self.end
    }

    /// The offset in the file of the next byte.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Whether the content is a file or its beginning, not a later segment.
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        let next = self.at.saturating_add(bytes.len() as u64);
        let mut rest = bytes;
        while !rest.is_empty() && self.end == FrameEnd::Unknown {
            let taken = self.step(rest);
            self.at = self.at.saturating_add(taken as u64);
            rest = &rest[taken..];
            self.leave();
            if self.at.saturating_sub(self.start) >= FRAME_MAX {
                self.find(self.start.saturating_add(FRAME_MAX));
            }
        }
        self.at = next;
    }

    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.place {
            BoxState::Skip(end) => {
                let left = usize::try_from(end - self.at).unwrap_or(usize::MAX);
                left.min(bytes.len())
            }
            BoxState::Leaf { kind, end, wanted } => {
                let taken = self.keep(bytes, wanted);
                if self.kept.len() == wanted {
                    self.on_leaf(kind);
                    self.kept.clear();
                    self.place = BoxState::Skip(end);
                }
                taken
            }
            BoxState::Head => {
                let long = self.kept.len() >= 8 && self.kept[..4] == [0, 0, 0, 1];
                let taken = self.keep(bytes, if long { 16 } else { 8 });
                self.on_head(self.at.saturating_add(taken as u64));
                taken
            }
        }
    }

    fn keep(&mut self, bytes: &[u8], wanted: usize) -> usize {
        let taken = bytes.len().min(wanted - self.kept.len());
        self.kept.extend_from_slice(&bytes[..taken]);
        taken
    }

    fn on_head(&mut self, at: u64) {
        let Some((&size, rest)) = self.kept.split_first_chunk::<4>() else { return };
        let Some((&kind, rest)) = rest.split_first_chunk::<4>() else { return };
        let (length, size) = match (u32::from_be_bytes(size), rest.first_chunk::<8>()) {
            (1, None) => return,
            (1, Some(size)) => (16, u64::from_be_bytes(*size)),
            // Up to the end of the enclosing box, or of the file.
            (0, _) => (8, u64::MAX),
            (size, _) => (8, size.into()),
        };
        self.kept.clear();
        let begin = at - length;
        let limit = self.around.last().map_or(u64::MAX, |(_, end)| *end);
        let end = begin.saturating_add(size);
        let is_beyond = at > limit || end > limit && size != u64::MAX;
        if size < length || is_beyond {
            return self.give_up();
        }
        self.on_box(kind, begin, at, end.min(limit));
    }

    fn on_box(&mut self, kind: BoxKind, begin: u64, at: u64, end: u64) {
        if std::mem::take(&mut self.is_first) {
            self.is_file = kind == *b"ftyp" || kind == *b"moov";
            if self.only_file && !self.is_file || !BEGINNINGS.contains(&&kind) {
                return self.give_up();
            }
        }
        let is_within =
            |kind: &BoxKind| self.around.last().is_some_and(|(around, _)| around == kind);
        let is_outermost = self.around.is_empty();
        match &kind {
            // The tables of its samples came before, or come too late.
            b"mdat" if is_outermost => return self.give_up(),
            b"moov" if is_outermost => {}
            b"moof" if is_outermost => {
                self.fragment = begin;
                self.fragment_tracks.clear();
            }
            b"trak" if is_within(b"moov") && self.tracks.len() < TRACKS_MAX => {
                self.tracks.push(MovieTrack::default());
            }
            b"traf" if is_within(b"moof") && self.fragment_tracks.len() < TRACKS_MAX => {
                self.fragment_tracks.push(FragmentTrack::default());
            }
            b"mvex" if is_within(b"moov") => self.is_fragmented = true,
            b"mdia" if is_within(b"trak") => {}
            b"minf" if is_within(b"mdia") => {}
            b"stbl" if is_within(b"minf") => {}
            b"tkhd" if is_within(b"trak") => return self.read(kind, at, end),
            b"hdlr" if is_within(b"mdia") => return self.read(kind, at, end),
            b"stsz" | b"stsc" | b"stss" | b"stco" | b"co64" if is_within(b"stbl") => {
                return self.read(kind, at, end);
            }
            b"trex" if is_within(b"mvex") => return self.read(kind, at, end),
            b"tfhd" | b"trun" if is_within(b"traf") => return self.read(kind, at, end),
            _ => {
                self.place = BoxState::Skip(end);
                return;
            }
        }
        if self.around.len() >= DEPTH_MAX {
            return self.give_up();
        }
        self.around.push((kind, end));
    }

    fn read(&mut self, kind: BoxKind, at: u64, end: u64) {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX);
        self.place = match length {
            0 => BoxState::Skip(end),
            length => BoxState::Leaf { kind, end, wanted: length.min(LEAF_MAX) },
        };
    }

    fn on_leaf(&mut self, kind: BoxKind) {
        let bytes = &self.kept[..];
        let (track, fragment) = (self.tracks.last_mut(), self.fragment_tracks.last_mut());
        match (&kind, track, fragment) {
            (b"trex", ..) => self.tracks.iter_mut().for_each(|track| track.on_trex(bytes)),
            (b"tfhd", _, Some(fragment)) => fragment.on_tfhd(bytes, &self.tracks, self.fragment),
            (b"trun", _, Some(fragment)) => fragment.on_trun(bytes),
            (_, Some(track), _) => track.on_leaf(kind, bytes),
            _ => {}
        }
    }

    fn leave(&mut self) {
        if matches!(self.place, BoxState::Skip(end) if end <= self.at) {
            self.place = BoxState::Head;
        }
        if !self.kept.is_empty() {
            // A head that exceeds its enclosing box is checked once it is complete.
            return;
        }
        while let Some((kind, _)) = self.around.pop_if(|(_, end)| *end <= self.at) {
            match &kind {
                b"moov" if !self.is_fragmented => {
                    let ends = self.tracks.iter().filter_map(MovieTrack::first_end);
                    self.find_or_give_up(ends.max());
                }
                b"moof" => {
                    let ends = self.fragment_tracks.iter();
                    let ends = ends.filter_map(|track| track.first_end(&self.tracks));
                    self.find_or_give_up(ends.max());
                }
                _ => {}
            }
        }
    }

    fn find_or_give_up(&mut self, end: Option<u64>) {
        match end {
            Some(end) => self.find(end),
            None => self.give_up(),
        }
    }

    fn find(&mut self, end: u64) {
        if self.end == FrameEnd::Unknown {
            self.end = FrameEnd::At(end.min(self.start.saturating_add(FRAME_MAX)));
            self.forget();
        }
    }

    fn give_up(&mut self) {
        if self.end == FrameEnd::Unknown {
            self.end = FrameEnd::Nowhere;
            self.forget();
        }
    }

    fn forget(&mut self) {
        (self.kept, self.around) = (Vec::new(), Vec::new());
        (self.tracks, self.fragment_tracks) = (Vec::new(), Vec::new());
        self.place = BoxState::Head;
    }
}
