//! What the bench of the coding has measured, as JSON and as a table.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{DECODES, ENCODES};
use crate::table;

/// The figures; the names are those that every measuring command uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// A kernel each, the slowest first.
    pub kernels: Vec<Figures>,
}

/// What a kernel reaches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The kernel.
    pub name: &'static str,
    /// By how many packets are coded over; n + 3 coded packets of n, or one of 10.
    pub encode_bytes_per_second: BTreeMap<&'static str, f64>,
    /// The time for each coded packet of these.
    pub coded_packet_ns: BTreeMap<&'static str, f64>,
    /// By how many packets are lost: all of a run of 10, or 3 of it.
    pub decode_bytes_per_second: BTreeMap<&'static str, f64>,
}

impl Results {
    /// The table for a person.
    pub fn render(&self) -> String {
        let mut table = table::bare();
        let encodes =
            ENCODES.iter().map(|encode| format!("{} of {}", encode.coded, encode.sources));
        let decodes = DECODES.iter().map(|decode| format!("{} of 10 lost", decode.lost.len()));
        let header = ["GB/s of sources".to_owned()].into_iter().chain(encodes).chain(decodes);
        table.set_header(header.chain(["1 of 10, each".to_owned()]));
        for figures in &self.kernels {
            let speed = |map: &BTreeMap<_, f64>, key| {
                map.get(key).map_or_else(String::new, |speed| format!("{:.2}", speed / 1e9))
            };
            let encodes = ENCODES.iter().map(|of| speed(&figures.encode_bytes_per_second, of.key));
            let decodes = DECODES.iter().map(|of| speed(&figures.decode_bytes_per_second, of.key));
            let row = [figures.name.to_owned()].into_iter().chain(encodes).chain(decodes);
            let one = figures.coded_packet_ns.get("one_of_10");
            table.add_row(row.chain(one.map(|nanos| format!("{nanos:.0} ns"))));
        }
        table::right_aligned(table, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_kernel() {
        let figures = |name, speed| {
            let keys = |keys: &[&'static str]| keys.iter().map(|key| (*key, speed)).collect();
            Figures {
                name,
                encode_bytes_per_second: keys(&["4", "10", "32", "one_of_10"]),
                coded_packet_ns: keys(&["one_of_10"]),
                decode_bytes_per_second: keys(&["10"]),
            }
        };
        let kernels = vec![figures("portable", 1e9), figures("gfni-avx512", 12e9)];
        let text = Results { kernels }.render();
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap();
        assert!(line("portable").contains("1.00") && line("gfni").contains("12.00"), "{text}");
        assert!(text.contains("35 of 32"), "{text}");
    }
}
