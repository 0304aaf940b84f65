//! Where the first samples of a track are, by the boxes of a movie and of a fragment.

/// A video with a later first picture is taken to begin with its first sample.
const SAMPLES_MAX: usize = 30;
const NON_SYNC: u32 = 0x1_0000;

#[derive(Debug, Default)]
pub(super) struct MovieTrack {
    id: u32,
    is_video: bool,
    default_size: Option<u32>,
    default_flags: u32,
    sizes: Vec<u32>,
    sync: Option<u32>,
    in_chunk: Option<u32>,
    chunk: Option<u64>,
}

impl MovieTrack {
    pub(super) fn on_leaf(&mut self, kind: [u8; 4], bytes: &[u8]) {
        let mut fields = Fields(bytes);
        let Some(version) = fields.u32().map(|flags| flags >> 24) else { return };
        match &kind {
            b"tkhd" => {
                fields.skip(if version == 1 { 16 } else { 8 });
                self.id = fields.u32().unwrap_or(0);
            }
            b"hdlr" => self.is_video = bytes.get(8..12) == Some(b"vide"),
            b"stsz" => {
                let (size, count) = (fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
                let count = SAMPLES_MAX.min(count as usize);
                self.sizes = match size {
                    0 => std::iter::from_fn(|| fields.u32()).take(count).collect(),
                    size => vec![size; count],
                };
            }
            b"stss" => self.sync = fields.u32().filter(|count| *count > 0).and(fields.u32()),
            b"stsc" => {
                let first = fields.u32().filter(|count| *count > 0).and(fields.u32());
                self.in_chunk = first.filter(|chunk| *chunk == 1).and(fields.u32());
            }
            b"stco" => {
                let first = fields.u32().filter(|count| *count > 0).and(fields.u32());
                self.chunk = first.map(u64::from);
            }
            b"co64" => self.chunk = fields.u32().filter(|count| *count > 0).and(fields.u64()),
            _ => {}
        }
    }

    pub(super) fn on_trex(&mut self, bytes: &[u8]) {
        let mut fields = Fields(bytes);
        fields.skip(4);
        if fields.u32() == Some(self.id) {
            fields.skip(8);
            self.default_size = fields.u32();
            self.default_flags = fields.u32().unwrap_or(0);
        }
    }

    pub(super) fn first_end(&self) -> Option<u64> {
        let (chunk, in_chunk) = (self.chunk?, self.in_chunk.unwrap_or(1));
        let samples = self.sync.filter(|sync| *sync <= in_chunk).unwrap_or(1).max(1) as usize;
        let sizes = self.sizes.get(..samples).or(self.sizes.get(..1))?;
        let length: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        self.is_video.then(|| chunk.saturating_add(length))
    }
}

#[derive(Debug, Default)]
pub(super) struct FragmentTrack {
    id: u32,
    base: u64,
    default_size: Option<u32>,
    default_flags: u32,
    end: Option<u64>,
}

impl FragmentTrack {
    pub(super) fn on_tfhd(&mut self, bytes: &[u8], tracks: &[MovieTrack], fragment: u64) {
        let mut fields = Fields(bytes);
        let (Some(flags), Some(id)) = (fields.u32(), fields.u32()) else { return };
        self.id = id;
        if let Some(track) = tracks.iter().find(|track| track.id == id) {
            (self.default_size, self.default_flags) = (track.default_size, track.default_flags);
        }
        let base = if flags & 0x1 != 0 { fields.u64() } else { None };
        self.base = base.unwrap_or(fragment);
        fields.skip(if flags & 0x2 != 0 { 4 } else { 0 });
        fields.skip(if flags & 0x8 != 0 { 4 } else { 0 });
        if flags & 0x10 != 0 {
            self.default_size = fields.u32();
        }
        if flags & 0x20 != 0 {
            self.default_flags = fields.u32().unwrap_or(0);
        }
    }

    /// Only the first `trun` with samples counts.
    pub(super) fn on_trun(&mut self, bytes: &[u8]) {
        let mut fields = Fields(bytes);
        let (Some(flags), Some(count)) = (fields.u32(), fields.u32()) else { return };
        if self.end.is_some() || count == 0 {
            return;
        }
        let offset = if flags & 0x1 != 0 { fields.u32().unwrap_or(0) as i32 } else { 0 };
        let first_flags = if flags & 0x4 != 0 { fields.u32() } else { None };
        let data = self.base.saturating_add_signed(offset.into());
        let (mut end, mut first_end) = (data, None);
        for number in 0..SAMPLES_MAX.min(count as usize) {
            fields.skip(if flags & 0x100 != 0 { 4 } else { 0 });
            let size = if flags & 0x200 != 0 { fields.u32() } else { self.default_size };
            let own = if flags & 0x400 != 0 { fields.u32() } else { None };
            fields.skip(if flags & 0x800 != 0 { 4 } else { 0 });
            let Some(size) = size else { break };
            end = end.saturating_add(size.into());
            first_end.get_or_insert(end);
            let first = first_flags.filter(|_| number == 0);
            if first.or(own).unwrap_or(self.default_flags) & NON_SYNC == 0 {
                self.end = Some(end);
                return;
            }
        }
        self.end = first_end;
    }

    /// Without a movie, which would name the videos, all tracks count.
    pub(super) fn first_end(&self, tracks: &[MovieTrack]) -> Option<u64> {
        let track = tracks.iter().find(|track| track.id == self.id);
        self.end.filter(|_| track.is_none_or(|track| track.is_video))
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn skip(&mut self, length: usize) {
        self.0 = self.0.get(length..).unwrap_or_default();
    }
}
