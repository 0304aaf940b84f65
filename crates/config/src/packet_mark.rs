//! Marks of packets and connections.

use std::fmt;

use roadweave_proto::{Kind, Marks};
use serde::{Deserialize, Serialize};

/// Bits of a packet's mark and an optional mask: "0x10", or "0x10/0xf0".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PacketMark {
    bits: u32,
    mask: u32,
}

impl PacketMark {
    /// The bits and the mask.
    pub fn bits(self) -> (u32, u32) {
        (self.bits, self.mask)
    }

    /// Fails if a client's own marks use its bits, and says which bits are free.
    pub(crate) fn check(self, marks: PacketMarks) -> Result<(), String> {
        let is_default = marks == PacketMarks::default();
        let marks = Marks::from(marks);
        // With all bits the client's own marks in the lower half are single values.
        let own = if is_default { marks.above_mask() } else { marks.mask() };
        if self.mask & own != 0 {
            let free = !own;
            return Err(format!(
                "\"{self}\": the bits {own:#x} are the client's own (packet_marks); use those of \
                 {free:#x}, also in the mask"
            ));
        }
        for kind in [Kind::Taken, Kind::Failed] {
            let (mark, _) = marks.kind(kind);
            if mark & self.mask == self.bits {
                return Err(format!("\"{self}\" is the mark {mark:#x} too, which the client sets"));
            }
        }
        Ok(())
    }
}

/// The bits of packet and connection marks that may be used: a mask, such as "0x00ff0000".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PacketMarks(Marks);

impl From<PacketMarks> for Marks {
    fn from(marks: PacketMarks) -> Self {
        marks.0
    }
}

impl TryFrom<String> for PacketMarks {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let Some(mask) = number(&text) else {
            return Err(format!("\"{text}\" is no mask; write \"0x00ff0000\""));
        };
        Marks::within(mask).map(Self).map_err(|error| {
            format!(
                "{error}; write one with more, such as \"0x00ff0000\", or leave packet_marks out"
            )
        })
    }
}

impl From<PacketMarks> for String {
    fn from(marks: PacketMarks) -> Self {
        format!("{:#010x}", marks.0.mask())
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl TryFrom<String> for PacketMark {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (bits, mask) = text.split_once('/').unwrap_or((&text, "0xffff"));
        let (Some(bits), Some(mask)) = (number(bits), number(mask)) else {
            return Err(format!("\"{text}\" is no mark; write \"0x10\", or \"0x10/0xf0\""));
        };
        if bits == 0 || bits & !mask != 0 {
            let why = "is borne by every packet without a mark, or by none";
            return Err(format!("\"{text}\" {why}; set bits, and the same in the mask"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_other_tools_write_them_and_meaningless_ones_are_refused() {
        let read = |text: &str| PacketMark::try_from(text.to_owned()).map(PacketMark::bits);
        assert_eq!(read("0x10"), Ok((0x10, 0xffff)));
        assert_eq!(read("16/0xf0"), Ok((0x10, 0xf0)));
        assert_eq!(read(&PacketMark { bits: 0x10, mask: 0xf0 }.to_string()), Ok((0x10, 0xf0)));
        for (text, said) in [
            ("0x10/", "write \"0x10\""),
            ("-1", "write \"0x10\""),
            ("0", "without a mark"),
            ("0x11/0x10", "in the mask"),
            ("0x10000", "in the mask"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }

    #[test]
    fn what_is_excluded_bears_none_of_the_clients_bits() {
        let check = |text: &str, marks: PacketMarks| {
            PacketMark::try_from(text.to_owned()).expect(text).check(marks)
        };
        let (all, byte) = (PacketMarks::default(), read("0x00ff0000").expect("eight bits"));
        let both = [("0x10", all), ("0x10/0xff", all), ("0x10/0xff", byte), ("0x5258", byte)];
        for (text, marks) in both.into_iter().chain([("0x1000000/0xff000000", byte)]) {
            check(text, marks).expect(text);
        }
        for (text, marks, said) in [
            ("0x10000/0xf0000", all, "0xffff0000 are the client's own"),
            ("0x1/0xffffffff", all, "use those of 0xffff,"),
            ("0x5258", all, "0x5258 too"),
            ("0x8/0xf", all, "0x5258 too"),
            ("0x1/0x3", all, "0x5259 too"),
            ("0x10/0x100ff", byte, "use those of 0xff00ffff,"),
        ] {
            let refused = check(text, marks).expect_err(text);
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }

    fn read(text: &str) -> Result<PacketMarks, String> {
        PacketMarks::try_from(text.to_owned())
    }

    #[test]
    fn a_mask_is_refused_with_what_would_do() {
        for (text, said) in [
            ("all", "write \"0x00ff0000\""),
            ("0x10/0xff", "write \"0x00ff0000\""),
            ("0", "0 has 0 bits"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.contains(said), "{text}: {refused}");
        }
        let written = String::from(read("0xff0000").expect("eight bits"));
        assert_eq!(written, "0x00ff0000");
        assert_eq!(read("0xffffffff"), Ok(PacketMarks::default()));
    }
}
