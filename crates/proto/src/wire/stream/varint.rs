//! Integers of variable length (RFC 9000 section 16), whose first two bits give the length.
//!
//! ```text
//! 00 + 6 bits | 01 + 14 bits | 10 + 30 bits | 11 + 62 bits
//! ```

use bytes::{Buf, BufMut, Bytes};

/// The largest number, 2^62 - 1.
pub const VARINT_MAX: u64 = (1 << 62) - 1;

pub(crate) const fn varint_len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends `value`, at most [`VARINT_MAX`], in the fewest bytes.
pub fn put_varint(out: &mut impl BufMut, value: u64) {
    debug_assert!(value <= VARINT_MAX);
    match varint_len(value) {
        1 => out.put_u8(value as u8),
        2 => out.put_u16(value as u16 | 0x4000),
        4 => out.put_u32(value as u32 | 0x8000_0000),
        _ => out.put_u64(value & VARINT_MAX | 0xc000_0000_0000_0000),
    }
}

/// Takes a complete number of any length, as a receiver must.
pub(crate) fn get_varint(bytes: &mut Bytes) -> Option<u64> {
    let length = 1 << (bytes.first()? >> 6);
    (bytes.len() >= length).then(|| bytes.get_uint(length) & (VARINT_MAX >> (64 - 8 * length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 9000 appendix A.1.
    #[test]
    fn numbers_are_those_of_quic() {
        let check = |bytes: &'static [u8], value: u64| {
            assert_eq!(get_varint(&mut Bytes::from_static(bytes)), Some(value));
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value));
            assert_eq!(get_varint(&mut Bytes::from(out)), Some(value));
        };
        check(&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652);
        check(&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333);
        check(&[0x7b, 0xbd], 15_293);
        check(&[0x25], 37);
        check(&[0x40, 0x25], 37);
        check(&[0xff; 8], VARINT_MAX);
        for cut_off in [&[][..], &[0x40], &[0x80, 0, 0], &[0xc0; 7]] {
            assert_eq!(get_varint(&mut Bytes::copy_from_slice(cut_off)), None);
        }
    }
}
