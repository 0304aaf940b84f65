//! Marks of packets, by which the kernel's rules tell them apart.

use std::fmt;

use roadweave_types::{FAILED_MARK, TAKEN_MARK};
use serde::{Deserialize, Serialize};

/// The bits of a packet's mark that tell which packets are meant: "0x10", or "0x10/0xf0" where
/// other bits may be set as they like. Of the lower half of a mark: the upper one is the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PacketMark {
    bits: u32,
    mask: u32,
}

impl PacketMark {
    /// The bits, and the mask under which they count.
    pub fn bits(self) -> (u32, u32) {
        (self.bits, self.mask)
    }
}

impl TryFrom<String> for PacketMark {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |part: &str| match part.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => part.parse().ok(),
        };
        let (bits, mask) = text.split_once('/').unwrap_or((&text, "0xffff"));
        let (Some(bits), Some(mask)) = (number(bits), number(mask)) else {
            return Err(format!("\"{text}\" is no mark; write \"0x10\", or \"0x10/0xf0\""));
        };
        if mask & !LOWER != 0 || bits & !LOWER != 0 {
            return Err(format!("\"{text}\": bits 16 to 31 are the client's own; use those below"));
        }
        if bits == 0 || bits & !mask != 0 {
            let why = "is borne by every packet without a mark, or by none";
            return Err(format!("\"{text}\" {why}; set bits, and the same in the mask"));
        }
        if let Some(own) = [TAKEN_MARK, FAILED_MARK].into_iter().find(|own| own & mask == bits) {
            return Err(format!("\"{text}\" is the mark {own:#x} too, which the client sets"));
        }
        Ok(Self { bits, mask })
    }
}

impl fmt::Display for PacketMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.bits, self.mask)
    }
}

impl From<PacketMark> for String {
    fn from(mark: PacketMark) -> Self {
        mark.to_string()
    }
}

const LOWER: u32 = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_other_tools_write_them_and_what_tells_nothing_is_refused() {
        let read = |text: &str| PacketMark::try_from(text.to_owned()).map(PacketMark::bits);
        assert_eq!(read("0x10"), Ok((0x10, 0xffff)));
        assert_eq!(read("16/0xf0"), Ok((0x10, 0xf0)));
        assert_eq!(read(&PacketMark { bits: 0x10, mask: 0xf0 }.to_string()), Ok((0x10, 0xf0)));
        for (text, said) in [
            ("voice", "write \"0x10\""),
            ("0x10/", "write \"0x10\""),
            ("-1", "write \"0x10\""),
            ("0", "without a mark"),
            ("0x11/0x10", "in the mask"),
            ("0x10000", "bits 16 to 31"),
            ("0x1/0xffffffff", "bits 16 to 31"),
            ("0x5258", "0x5258 too"),
            ("0x8/0xf", "0x5258 too"),
            ("0x1/0x3", "0x5259 too"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
