//! The links of a demo: synthetic, recorded, or described by a file.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use roadweave_emulate::{DuplexLink, LinkFields, LinkFiles, Trace};
use roadweave_lab::figures::Timeline;

use super::world;
use crate::emulate::{EmulateFile, NamespaceSettings};

pub const OPERATORS: [&str; 4] = ["att", "verizon", "tmobile", "lte"];

/// Links that are identical in every run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub file: EmulateFile,
    links: Vec<DuplexLink>,
}

impl Scenario {
    /// Four synthetic cellular links; equal seeds give equal links.
    pub fn synthetic(seed: u64) -> anyhow::Result<Self> {
        Self::new("synthetic".to_owned(), seed, synthetic_links())
    }

    pub fn recorded(directory: &Path, seed: u64) -> anyhow::Result<Self> {
        let unreadable = || format!("cannot read the drive {}", directory.display());
        let directory = directory.canonicalize().with_context(unreadable)?;
        let link = |files: LinkFiles| LinkFields {
            name: files.name,
            trace: Some(files.up),
            trace_down: files.down,
            ..LinkFields::default()
        };
        let links = LinkFiles::of_directory(&directory)?.into_iter().map(link).collect();
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::new(name, seed, links)
    }

    /// The links of `file`, a configuration of `roadweave emulate`, without their addresses. `seed`
    /// overrides the file's.
    pub fn described(file: &Path, seed: Option<u64>) -> anyhow::Result<Self> {
        let description = EmulateFile::read(file)?;
        let directory = file.parent().unwrap_or(Path::new("."));
        let directory = if directory == Path::new("") { Path::new(".") } else { directory };
        let directory = directory.canonicalize()?;
        let mut links = description.links;
        for link in &mut links {
            for trace in [&mut link.trace, &mut link.trace_down].into_iter().flatten() {
                *trace = directory.join(&*trace);
            }
            link.near_addresses.clear();
            link.far_addresses.clear();
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::new(name, seed.unwrap_or(description.seed), links)
    }

    fn new(name: String, seed: u64, links: Vec<LinkFields>) -> anyhow::Result<Self> {
        let namespaces = NamespaceSettings {
            near: Some(world::BOX.to_owned()),
            far: Some(world::LINKS.to_owned()),
            ..NamespaceSettings::default()
        };
        let file = EmulateFile { seed, namespaces, links };
        let links = file.resolve(Path::new("/"))?.links;
        let links = links.into_iter().map(|emulated| emulated.link).collect();
        Ok(Self { name, file, links })
    }

    /// The names of the links, which are also the vehicle's uplinks.
    pub fn uplinks(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|link| link.name.as_str())
    }

    /// Name and capacity of each link, vehicle to cloud, Mbit/s per [`Timeline::STEP`].
    pub fn capacities(&self, seconds: u32) -> Vec<(String, Vec<f64>)> {
        let of_link =
            |trace: &Trace| rates_bps(trace, seconds).into_iter().map(|bps| bps / 1e6).collect();
        self.links.iter().map(|l| (l.name.clone(), of_link(&l.up.trace))).collect()
    }

    /// The link that alone carries most of a stream of `bitrate_bps` in the first `seconds`, and
    /// the share that it carries, 0..1; among equal links the one with the least delay.
    ///
    /// By the traces: a link carries its capacity minus loss, at most the stream's rate, per step.
    pub fn best_link(&self, bitrate_bps: u64, seconds: u32) -> (&str, f64) {
        let wanted = bitrate_bps as f64;
        let mut best: Option<(&str, f64, f64)> = None;
        for link in &self.links {
            let trace = &link.up.trace;
            let carried =
                |(rate, at): (f64, Duration)| (rate * (1.0 - trace.loss().at(at))).min(wanted);
            let rates = rates_bps(trace, seconds).into_iter().zip(steps(seconds));
            let share = mean(rates.map(carried)) / wanted;
            let delay = mean(steps(seconds).map(|at| trace.delay().at(at).as_secs_f64()));
            let better = |&(_, best_share, best_delay): &(&str, f64, f64)| {
                share > best_share || share == best_share && delay < best_delay
            };
            if best.as_ref().is_none_or(better) {
                best = Some((&link.name, share, delay));
            }
        }
        best.map_or(("", 0.0), |(name, share, _)| (name, share))
    }
}

pub fn synthetic_links() -> Vec<LinkFields> {
    let link = |operator: &str| LinkFields {
        name: operator.to_owned(),
        operator: Some(operator.to_owned()),
        ..LinkFields::default()
    };
    OPERATORS.map(link).to_vec()
}

fn steps(seconds: u32) -> impl Iterator<Item = Duration> {
    (0..seconds * 10).map(|step| Timeline::STEP * step)
}

fn rates_bps(trace: &Trace, seconds: u32) -> Vec<f64> {
    trace.capacity().mean_rates(Timeline::STEP, Duration::from_secs(seconds.into()))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::{DEFAULT_BITRATE, DEFAULT_SECONDS, DEFAULT_SEED};
    use super::*;

    fn default_bps() -> u64 {
        crate::rate::parse_video(DEFAULT_BITRATE).unwrap().as_bps()
    }

    /// The share of a stream that the best link carries alone, and the share of time in which all
    /// links together are too slow for it.
    fn alone_and_together(seed: u64) -> (f64, f64) {
        let scenario = Scenario::synthetic(seed).unwrap();
        let (_, alone) = scenario.best_link(default_bps(), DEFAULT_SECONDS);
        // A link counts while it loses no packets and its delay is at most 80 ms.
        let mut usable = vec![0.0; DEFAULT_SECONDS as usize * 10];
        for trace in scenario.links.iter().map(|link| &link.up.trace) {
            let rates = rates_bps(trace, DEFAULT_SECONDS).into_iter().zip(steps(DEFAULT_SECONDS));
            for (usable, (rate, at)) in usable.iter_mut().zip(rates) {
                if trace.loss().at(at) == 0.0 && trace.delay().at(at) <= Duration::from_millis(80) {
                    *usable += rate;
                }
            }
        }
        let wanted = default_bps() as f64 * 1.1;
        let short = usable.iter().filter(|usable| **usable < wanted).count();
        (alone, short as f64 / f64::from(DEFAULT_SECONDS * 10))
    }

    #[test]
    fn the_default_links_are_the_first_that_suffice_together_and_not_alone() {
        let suffice = |&seed: &u64| {
            let (alone, together) = alone_and_together(seed);
            println!("seed {seed}: alone {alone:.3}, too slow together {together:.3}");
            (0.6..0.97).contains(&alone) && together < 0.02
        };
        assert_eq!((1..100).find(suffice), Some(DEFAULT_SEED));
    }

    #[test]
    fn the_best_link_is_found_from_its_recording() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let header = "t_ms,capacity_kbps,rtt_ms,loss\n";
            std::fs::write(directory.path().join(name), format!("{header}{text}")).unwrap();
        };
        // Fast for a moment; steady; steady with loss; steady with more delay.
        write("burst.csv", "0,90000,40,0\n1000,1000,40,0\n2000,1000,40,0\n");
        write("good.csv", "0,20000,60,0\n1000,20000,60,0\n2000,20000,60,0\n");
        write("lossy.csv", "0,20000,40,0.5\n1000,20000,40,0.5\n2000,20000,40,0.5\n");
        write("slow.csv", "0,20000,80,0\n1000,20000,80,0\n2000,20000,80,0\n");
        let scenario = Scenario::recorded(directory.path(), 1).unwrap();
        let (name, share) = scenario.best_link(30_000_000, 2);
        assert_eq!(name, "good");
        assert!((share - 2.0 / 3.0).abs() < 1e-9, "{share}");
        let capacities = scenario.capacities(2);
        assert_eq!((capacities[0].1[9], capacities[0].1[10]), (90.0, 1.0));
    }

    #[test]
    fn a_file_gives_links_and_a_seed_and_no_addresses() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("two.toml");
        std::fs::write(folder.path().join("a.csv"), "t_ms,capacity_kbps\n0,8000\n9000,8000\n")
            .unwrap();
        let text = "seed = 3\n[[link]]\nname = 'a'\ntrace = 'a.csv'\nnear_addresses = ['192.0.2.2/24']\n\
                    [[link]]\nname = 'b'\nrate_kbps = 2000\n";
        std::fs::write(&file, text).unwrap();
        let scenario = Scenario::described(&file, None).unwrap();
        assert_eq!((scenario.name.as_str(), scenario.file.seed), ("two", 3));
        assert_eq!(scenario.uplinks().collect::<Vec<_>>(), ["a", "b"]);
        assert!(scenario.file.links.iter().all(|link| link.near_addresses.is_empty()));
        assert!(scenario.file.links[0].trace.as_ref().unwrap().is_absolute());
        assert_eq!(Scenario::described(&file, Some(7)).unwrap().file.seed, 7);
    }
}
