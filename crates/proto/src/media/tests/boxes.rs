//! Videos made of boxes and zeros (ISO/IEC 14496-12).

#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) size: u32,
    pub(super) is_sync: bool,
}

impl Sample {
    pub(super) fn sync(size: u32) -> Self {
        Self { size, is_sync: true }
    }

    pub(super) fn other(size: u32) -> Self {
        Self { size, is_sync: false }
    }
}

fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let size = (content.len() as u32 + 8).to_be_bytes();
    [&size[..], kind, content].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn filled(samples: &[Sample]) -> Vec<u8> {
    let length: u64 = samples.iter().map(|sample| u64::from(sample.size)).sum();
    vec![0; length.min(1 << 20) as usize]
}

fn track(id: u32, handler: &[u8; 4], tables: &[u8]) -> Vec<u8> {
    let tkhd = boxed(b"tkhd", &words(&[7, 0, 0, id, 0, 0]));
    let hdlr = boxed(b"hdlr", &[&words(&[0, 0])[..], handler, &words(&[0, 0, 0])].concat());
    let minf = boxed(b"minf", &boxed(b"stbl", tables));
    boxed(b"trak", &[tkhd, boxed(b"mdia", &[hdlr, minf].concat())].concat())
}

/// A file with sound and a video of `samples` (first sync: `sync`), and its first picture's end.
pub(super) fn movie(samples: &[Sample], sync: Option<u32>) -> (Vec<u8>, usize) {
    let count = samples.len() as u32;
    let sizes: Vec<u32> = samples.iter().map(|sample| sample.size).collect();
    let tables = |chunk: u32| {
        let stss = sync.map(|sync| boxed(b"stss", &words(&[0, 1, sync]))).unwrap_or_default();
        [
            boxed(b"stsz", &[words(&[0, 0, count]), words(&sizes)].concat()),
            boxed(b"stsc", &words(&[0, 1, 1, count, 1])),
            stss,
            boxed(b"stco", &words(&[0, 2, chunk, 1 << 30])),
        ]
        .concat()
    };
    let sound = [
        boxed(b"stsz", &words(&[0, 900_000, 5])),
        boxed(b"stsc", &words(&[0, 1, 1, 5, 1])),
        boxed(b"stco", &words(&[0, 1, 77])),
    ]
    .concat();
    let ftyp = boxed(b"ftyp", b"isom\0\0\0\0isom");
    let whole = |chunk: u32| {
        let tracks = [track(1, b"soun", &sound), track(2, b"vide", &tables(chunk))].concat();
        let moov = boxed(b"moov", &[boxed(b"mvhd", &[0; 100]), tracks].concat());
        [ftyp.clone(), moov, boxed(b"free", &[0; 20])].concat()
    };
    let chunk = whole(0).len() + 8 + 1_000;
    let mdat = boxed(b"mdat", &[vec![0; 1_000], filled(samples)].concat());
    let first = sync.unwrap_or(1) as usize;
    let end = chunk + sizes[..first].iter().sum::<u32>() as usize;
    ([whole(chunk as u32), mdat].concat(), end)
}

pub(super) fn initialization(videos: &[u32]) -> Vec<u8> {
    let empty = || {
        ["stsz", "stsc", "stco"]
            .map(|kind| boxed(kind.as_bytes().first_chunk().expect("four"), &words(&[0, 0, 0])))
            .concat()
    };
    let tracks = videos.iter().flat_map(|id| track(*id, b"vide", &empty()));
    let mut tracks: Vec<u8> = tracks.collect();
    tracks.extend(track(99, b"soun", &empty()));
    let mvex = boxed(b"mvex", &boxed(b"trex", &words(&[0, videos[0], 1, 0, 4_321, 0x1_0000])));
    let moov = boxed(b"moov", &[tracks, mvex].concat());
    [boxed(b"ftyp", b"iso6\0\0\0\0"), moov].concat()
}

pub(super) fn fragment(track: u32, samples: &[Sample]) -> (Vec<u8>, usize) {
    let styp = boxed(b"styp", b"msdh\0\0\0\0msdh");
    let sidx = boxed(b"sidx", &[0; 24]);
    let entries: Vec<u32> = samples
        .iter()
        .flat_map(|sample| [40, sample.size, if sample.is_sync { 0x200_0000 } else { 0x101_0000 }])
        .collect();
    let moof = |offset: u32| {
        let count = samples.len() as u32;
        let trun = boxed(b"trun", &[words(&[0x701, count, offset]), words(&entries)].concat());
        let tfhd = boxed(b"tfhd", &words(&[0x2_0000, track]));
        let traf = boxed(b"traf", &[tfhd, boxed(b"tfdt", &[0; 8]), trun].concat());
        boxed(b"moof", &[boxed(b"mfhd", &[0; 8]), traf].concat())
    };
    let offset = moof(0).len() + 8;
    let before = [styp, sidx].concat();
    let until = samples.iter().position(|sample| sample.is_sync).unwrap_or(0);
    let length: u64 = samples[..=until].iter().map(|sample| u64::from(sample.size)).sum();
    let end = before.len() + offset + length as usize;
    let mdat = boxed(b"mdat", &filled(samples));
    ([before, moof(offset as u32), mdat].concat(), end)
}
