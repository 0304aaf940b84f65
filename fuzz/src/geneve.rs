//! GENEVE: a parsed packet is equal after being written and read again.

use roadweave_proto::wire::{Geneve, GeneveContent, GeneveHello, GeneveSequence};

pub fn run(data: &[u8]) {
    let Ok(parsed) = Geneve::parse(data) else { return };
    let written = match parsed.content {
        GeneveContent::Inner { sequence, packet } => {
            assert!(data.ends_with(packet) && matches!(packet[0] >> 4, 4 | 6));
            [&Geneve::inner_header(parsed.vni, packet[0], sequence)[..], packet].concat()
        }
        GeneveContent::Hello(hello) => Geneve::hello(parsed.vni, &hello).to_vec(),
    };
    assert_eq!(Geneve::parse(&written), Ok(parsed));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let sequence = GeneveSequence { epoch: 1, number: u32::MAX };
    let inner = |first| [&Geneve::inner_header(7, first, sequence)[..], &[first; 24]].concat();
    let mut foreign = inner(0x45);
    foreign[0] += 2;
    foreign.splice(8..8, [1, 2, 5, 1, 9, 9, 9, 9]);
    let hello = GeneveHello { epoch: 1, link: 2, sent_us: 3, echoed_us: 4, held_us: 5 };
    vec![inner(0x45), inner(0x60), Geneve::hello(7, &hello).to_vec(), foreign]
}
