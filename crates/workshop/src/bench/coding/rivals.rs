//! The same work by libraries that others wrote.
//!
//! | | ISA-L | `rlnc` |
//! |---|---|---|
//! | encodes | `ec_encode_data` with a Cauchy matrix, whose tables are made beforehand | `Encoder::code_with_buf`, which draws its coefficients each time |
//! | decodes | `gf_invert_matrix`, `ec_init_tables`, `ec_encode_data`: which packets arrive is known only then | `Decoder::new`, `decode` for each packet, `get_decoded_data` |
//!
//! Both write into buffers that are there, laid out as ours; both use what the processor has, as
//! they find it out themselves.

use anyhow::{anyhow, ensure};
use bytes::Bytes;
use rand_core::SeedableRng as _;
use rand_pcg::Pcg64Mcg;
use rlnc::full;

use super::isal::{Call, Isal};
use super::packets::{Datagrams, PACKET_BYTES, Packets, RUNS};

/// ISA-L makes `coded` packets of each run, in turn.
pub fn isal_encode<'a>(isal: &'a Isal, packets: &'a Packets, coded: usize) -> impl FnMut(u32) + 'a {
    let count = packets.runs()[0].len();
    let tables = isal.tables(&isal.cauchy(coded, count), count);
    let mut datagrams = Datagrams::new(coded);
    move |times| {
        let mut rooms = datagrams.rooms();
        let calls = packets.runs().iter().zip(&mut rooms);
        let mut calls: Vec<Call<'_>> = calls
            .map(|(run, rooms)| {
                let sources: Vec<&[u8]> = run.iter().map(|source| &source[..]).collect();
                isal.call(&tables, &sources, rooms)
            })
            .collect();
        for run in (0..RUNS).cycle().take(times as usize) {
            calls[run].run();
        }
    }
}

/// ISA-L solves each run, in turn, from as many coded packets as it has sources.
pub fn isal_decode<'a>(isal: &'a Isal, packets: &'a Packets) -> impl FnMut(u32) + 'a {
    let count = packets.runs()[0].len();
    let matrix = isal.cauchy(count, count);
    let tables = isal.tables(&matrix, count);
    let mut coded = Datagrams::new(count);
    for (run, rooms) in packets.runs().iter().zip(&mut coded.rooms()) {
        let sources: Vec<&[u8]> = run.iter().map(|source| &source[..]).collect();
        isal.call(&tables, &sources, rooms).run();
    }
    let mut decoded = Datagrams::new(count);
    move |times| {
        let (arrived, mut rooms) = (coded.rooms(), decoded.rooms());
        for run in (0..RUNS).cycle().take(times as usize) {
            let arrived: Vec<&[u8]> = arrived[run].iter().map(|coded| &**coded).collect();
            let inverse = isal.invert(&matrix, count).expect("Cauchy matrices are invertible");
            isal.call(&isal.tables(&inverse, count), &arrived, &mut rooms[run]).run();
        }
    }
}

/// `rlnc` makes `coded` packets of each run, in turn.
///
/// # Errors
/// When the crate refuses the packets.
pub fn rlnc_encode(packets: &Packets, coded: usize) -> anyhow::Result<impl FnMut(u32) + use<>> {
    let encoders = rlnc_encoders(packets)?;
    let piece_len = encoders[0].get_full_coded_piece_byte_len();
    let mut pieces = vec![vec![0; piece_len * coded]; RUNS];
    let mut random = Pcg64Mcg::seed_from_u64(1);
    Ok(move |times| {
        for run in (0..RUNS).cycle().take(times as usize) {
            for piece in pieces[run].chunks_exact_mut(piece_len) {
                let done = encoders[run].code_with_buf(&mut random, piece);
                done.expect("the buffer is as long as a piece");
            }
        }
    })
}

/// `rlnc` solves each run, in turn, from as many coded packets as it has sources.
///
/// # Errors
/// When the crate refuses the packets.
pub fn rlnc_decode(packets: &Packets) -> anyhow::Result<impl FnMut(u32) + use<>> {
    let encoders = rlnc_encoders(packets)?;
    let (piece_len, count) = (encoders[0].get_piece_byte_len(), encoders[0].get_piece_count());
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let runs: Vec<_> = encoders.iter().map(|encoder| useful_pieces(encoder, &mut random)).collect();
    Ok(move |times| {
        for pieces in runs.iter().cycle().take(times as usize) {
            let mut decoder = full::Decoder::new(piece_len, count).expect("sizes are not zero");
            for piece in pieces {
                decoder.decode(piece).expect("the pieces are independent");
            }
            let decoded = decoder.get_decoded_data().expect("enough pieces arrived");
            assert_eq!(std::hint::black_box(decoded).len(), count * piece_len - 1);
        }
    })
}

/// As many coded packets as there are sources, linearly independent.
fn useful_pieces(encoder: &full::Encoder, random: &mut Pcg64Mcg) -> Vec<Vec<u8>> {
    let (piece_len, count) = (encoder.get_piece_byte_len(), encoder.get_piece_count());
    let mut decoder = full::Decoder::new(piece_len, count).expect("sizes are not zero");
    let mut pieces = Vec::with_capacity(count);
    while !decoder.is_already_decoded() {
        let piece = encoder.code(random);
        if decoder.decode(&piece).is_ok() {
            pieces.push(piece);
        }
    }
    pieces
}

/// An encoder for each run. It marks the end of its data with a byte of its own, for which the last
/// byte of the run makes room, so that its packets are as long as the others'.
fn rlnc_encoders(packets: &Packets) -> anyhow::Result<Vec<full::Encoder>> {
    let encoder = |run: &Vec<Bytes>| {
        let mut data = run.concat();
        data.pop();
        let encoder = full::Encoder::new(data, run.len());
        let encoder = encoder.map_err(|error| anyhow!("rlnc refuses the packets: {error}"))?;
        ensure!(encoder.get_piece_byte_len() == PACKET_BYTES, "rlnc cuts packets otherwise");
        Ok(encoder)
    };
    packets.runs().iter().map(encoder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rlnc_solves_what_it_made() {
        let packets = Packets::new(10);
        let encoders = rlnc_encoders(&packets).unwrap();
        let pieces = useful_pieces(&encoders[1], &mut Pcg64Mcg::seed_from_u64(1));
        assert_eq!(pieces.len(), 10);
        let mut decoder = full::Decoder::new(PACKET_BYTES, 10).unwrap();
        pieces.iter().for_each(|piece| decoder.decode(piece).unwrap());
        let expected = packets.runs()[1].concat();
        assert_eq!(decoder.get_decoded_data().unwrap(), expected[..expected.len() - 1]);
    }

    /// Says nothing where ISA-L is not installed.
    #[test]
    fn isal_solves_what_it_made() {
        let Some(isal) = Isal::load() else { return };
        let packets = Packets::new(4);
        let sources: Vec<&[u8]> = packets.runs()[0].iter().map(|source| &source[..]).collect();
        let matrix = isal.cauchy(4, 4);
        assert!(matrix.iter().all(|coefficient| *coefficient != 0), "all packets are combinations");
        let (mut coded, mut decoded) =
            (vec![vec![0; PACKET_BYTES]; 4], vec![vec![0; PACKET_BYTES]; 4]);
        let apply = |matrix: &[u8], sources: &[&[u8]], outputs: &mut [Vec<u8>]| {
            let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(|one| &mut one[..]).collect();
            isal.call(&isal.tables(matrix, 4), sources, &mut outputs).run();
        };
        apply(&matrix, &sources, &mut coded);
        assert_ne!(coded, sources);
        let arrived: Vec<&[u8]> = coded.iter().map(|one| &one[..]).collect();
        apply(&isal.invert(&matrix, 4).unwrap(), &arrived, &mut decoded);
        assert_eq!(decoded, sources);
        assert_eq!(isal.invert(&[0; 16], 4), None);
    }
}
