//! What the bench of the coding has measured, as JSON and as tables.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde::Serialize;

use super::{DECODES, ENCODES, isal};

/// The figures; the names are those that every measuring command uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// Our own, a kernel each, the slowest first.
    pub kernels: Vec<KernelFigures>,
    /// What libraries that others wrote reach at the same work.
    pub rivals: Rivals,
    /// How many times as fast as the rivals the fastest kernel is.
    pub ratios: Ratios,
}

/// What a kernel reaches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelFigures {
    /// Its speeds.
    #[serde(flatten)]
    pub figures: Figures,
    /// Its speeds over those of the rivals.
    pub ratios: Ratios,
}

/// What one contestant reaches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The kernel or the library.
    pub name: &'static str,
    /// By how many packets are coded over; n + 3 coded packets of n, or one of 10.
    pub encode_bytes_per_second: BTreeMap<&'static str, f64>,
    /// The time for each coded packet of these.
    pub coded_packet_ns: BTreeMap<&'static str, f64>,
    /// By how many packets are lost: all of a run of 10, or 3 of it.
    pub decode_bytes_per_second: BTreeMap<&'static str, f64>,
}

/// The libraries that others wrote.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rivals {
    /// None where it is not installed.
    pub isal: Option<Figures>,
    /// The crate.
    pub rlnc: Figures,
}

/// How many times as fast as a rival; none without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    /// 13 coded packets of 10.
    pub encode_10_over_isal: Option<f64>,
    /// 13 coded packets of 10.
    pub encode_10_over_rlnc: Option<f64>,
    /// All of 10 packets lost.
    pub decode_10_over_rlnc: Option<f64>,
    /// One coded packet of 10.
    pub one_of_10_over_isal: Option<f64>,
    /// All of 10 packets lost.
    pub decode_10_over_isal: Option<f64>,
}

impl Results {
    /// Works the ratios out.
    pub fn new(kernels: Vec<Figures>, rivals: Rivals) -> Self {
        let with_ratios = |figures: Figures| {
            let ratios = Ratios::between(&figures, &rivals);
            KernelFigures { figures, ratios }
        };
        let kernels: Vec<KernelFigures> = kernels.into_iter().map(with_ratios).collect();
        let ratios = kernels.last().map(|fastest| fastest.ratios).unwrap_or_default();
        Self { kernels, rivals, ratios }
    }

    /// The tables for a person: speeds, and ratios beside what they should be.
    pub fn render(&self) -> String {
        let hint = match self.rivals.isal {
            Some(_) => String::new(),
            None => format!(
                "\nISA-L is not here; to compare with it install the package {}.",
                isal::PACKAGE
            ),
        };
        format!("{}\n\n{}{hint}", self.speeds(), self.comparison())
    }

    fn speeds(&self) -> Table {
        let mut table = table();
        let encodes =
            ENCODES.iter().map(|encode| format!("{} of {}", encode.coded, encode.sources));
        let decodes = DECODES.iter().map(|decode| format!("{} of 10 lost", decode.lost.len()));
        let header = ["GB/s of sources".to_owned()].into_iter().chain(encodes).chain(decodes);
        table.set_header(header.chain(["1 of 10, each".to_owned()]));
        let kernels = self.kernels.iter().map(|kernel| &kernel.figures);
        for figures in kernels.chain(&self.rivals.isal).chain([&self.rivals.rlnc]) {
            let speed = |map: &BTreeMap<_, f64>, key| {
                map.get(key).map_or_else(String::new, |speed| format!("{:.2}", speed / 1e9))
            };
            let encodes = ENCODES.iter().map(|of| speed(&figures.encode_bytes_per_second, of.key));
            let decodes = DECODES.iter().map(|of| speed(&figures.decode_bytes_per_second, of.key));
            let row = [figures.name.to_owned()].into_iter().chain(encodes).chain(decodes);
            let one = figures.coded_packet_ns.get("one_of_10");
            table.add_row(row.chain(one.map(|nanos| format!("{nanos:.0} ns"))));
        }
        align_right(&mut table);
        table
    }

    fn comparison(&self) -> Table {
        let mut table = table();
        table.set_header(["", "measured", "target"]);
        let mut row = |what: String, ratio: Option<f64>, least: Option<f64>| {
            let measured = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2} times"));
            let target = least.map_or_else(String::new, |least| format!("at least {least}"));
            table.add_row([what, measured, target]);
        };
        for kernel in &self.kernels {
            let least = encode_target(kernel.figures.name);
            let what = format!("13 of 10 over ISA-L, {}", kernel.figures.name);
            row(what, kernel.ratios.encode_10_over_isal, least);
        }
        let ratios = &self.ratios;
        row("1 of 10 over ISA-L".into(), ratios.one_of_10_over_isal, Some(1.0));
        row("13 of 10 over rlnc".into(), ratios.encode_10_over_rlnc, None);
        row("10 of 10 lost, over rlnc".into(), ratios.decode_10_over_rlnc, Some(2.0));
        row("10 of 10 lost, over ISA-L".into(), ratios.decode_10_over_isal, None);
        align_right(&mut table);
        table
    }
}

impl Ratios {
    fn between(ours: &Figures, rivals: &Rivals) -> Self {
        let encode = |figures: &Figures, key| figures.encode_bytes_per_second.get(key).copied();
        let decode = |figures: &Figures, key| figures.decode_bytes_per_second.get(key).copied();
        let (isal, rlnc) = (rivals.isal.as_ref(), Some(&rivals.rlnc));
        let over = |speed: &dyn Fn(&Figures, &'static str) -> Option<f64>, key, rival| {
            Some(speed(ours, key)? / speed(rival?, key)?)
        };
        Self {
            encode_10_over_isal: over(&encode, "10", isal),
            encode_10_over_rlnc: over(&encode, "10", rlnc),
            decode_10_over_rlnc: over(&decode, "10", rlnc),
            one_of_10_over_isal: over(&encode, "one_of_10", isal),
            decode_10_over_isal: over(&decode, "10", isal),
        }
    }
}

/// How many times as fast as ISA-L a kernel is meant to be with 13 coded packets of 10.
fn encode_target(kernel: &str) -> Option<f64> {
    match kernel {
        "gfni-avx512" => Some(2.5),
        "gfni-avx2" | "avx2" => Some(1.0),
        _ => None,
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    table
}

fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &'static str, speed: f64) -> Figures {
        let keys = |keys: &[&'static str]| keys.iter().map(|key| (*key, speed)).collect();
        Figures {
            name,
            encode_bytes_per_second: keys(&["4", "10", "32", "one_of_10"]),
            coded_packet_ns: keys(&["4", "10", "32", "one_of_10"]),
            decode_bytes_per_second: keys(&["10", "3_of_10"]),
        }
    }

    fn results(isal: Option<Figures>) -> Results {
        let kernels = vec![figures("portable", 1e9), figures("gfni-avx512", 12e9)];
        Results::new(kernels, Rivals { isal, rlnc: figures("rlnc", 3e9) })
    }

    #[test]
    fn the_ratios_are_those_of_the_fastest_kernel() {
        let results = results(Some(figures("isal", 4e9)));
        assert_eq!(results.ratios, results.kernels[1].ratios);
        assert_eq!(results.ratios.encode_10_over_isal, Some(3.0));
        assert_eq!(results.ratios.decode_10_over_rlnc, Some(4.0));
        assert_eq!(results.kernels[0].ratios.one_of_10_over_isal, Some(0.25));
    }

    #[test]
    fn without_isal_the_rest_is_told_and_what_to_install() {
        let results = results(None);
        let json = serde_json::to_value(&results).unwrap();
        assert!(json["ratios"]["encode_10_over_isal"].is_null());
        assert_eq!(json["ratios"]["encode_10_over_rlnc"], 4.0);
        assert!(results.render().contains("libisal2"));
    }

    #[test]
    fn the_tables_show_the_targets() {
        let text = results(Some(figures("isal", 4e9))).render();
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap();
        let line = line("over ISA-L, gfni-avx512");
        assert!(line.contains("3.00 times") && line.contains("at least 2.5"), "{text}");
        assert!(text.contains("35 of 32") && !text.contains("libisal2"), "{text}");
    }
}
