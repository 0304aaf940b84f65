//! Pairs of links from recordings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_emulate::{DriveLink, Trace, read_trace};
use roadweave_lab::vod::Pair;
use roadweave_terminal::exit::BadInput;

use crate::lab::drives;

/// [`BadInput`] without any pairs.
pub(super) fn read(directory: &Path) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = of_folder(directory)?;
    for folder in entries(directory)?.into_iter().filter(|path| path.is_dir()) {
        pairs.extend(of_folder(&folder)?);
    }
    if pairs.is_empty() {
        let problem = format!(
            "{}: no pairs; a pair is NAME_wifi.csv with NAME_cellular.csv, or two links of \
             NAME_down.mm with NAME_up.mm",
            directory.display()
        );
        return Err(BadInput::new(problem).into());
    }
    Ok(pairs)
}

fn of_folder(folder: &Path) -> anyhow::Result<Vec<Pair>> {
    let files = entries(folder)?;
    let with_ending = |ending: &str| -> BTreeMap<String, PathBuf> {
        let name =
            |path: &PathBuf| Some(path.file_name()?.to_str()?.strip_suffix(ending)?.to_owned());
        let named = files.iter().filter(|path| path.is_file());
        named.filter_map(|path| Some((name(path)?, path.clone()))).collect()
    };
    let mut pairs = Vec::new();
    let cellular = with_ending("_cellular.csv");
    for (name, wifi) in with_ending("_wifi.csv") {
        let Some(cellular) = cellular.get(&name) else { continue };
        let one = |link: &str, file: &Path, rtt| -> anyhow::Result<DriveLink> {
            Ok(DriveLink::symmetric(link, trace(file, rtt)?))
        };
        let links = vec![one("wifi", &wifi, WIFI)?, one("cellular", cellular, CELLULAR)?];
        pairs.push(Pair { name, links });
    }
    let ups = with_ending("_up.mm");
    let mut links = Vec::new();
    for (name, down) in with_ending("_down.mm") {
        let down = trace(&down, CELLULAR)?;
        let up = ups.get(&name).map_or_else(|| Ok(down.clone()), |up| trace(up, CELLULAR))?;
        links.push((name, up, down));
    }
    for (at, one) in links.iter().enumerate() {
        for other in &links[at + 1..] {
            let link = |name: &str, (_, up, down): &(String, Trace, Trace)| DriveLink {
                name: name.to_owned(),
                up: up.clone(),
                down: down.clone(),
            };
            let name = format!("{}+{}", one.0, other.0);
            pairs.push(Pair { name, links: vec![link("a", one), link("b", other)] });
        }
    }
    Ok(pairs)
}

fn trace(file: &Path, rtt: Duration) -> anyhow::Result<Trace> {
    read_trace(file, rtt).map_err(|error| BadInput::new(error).into())
}

fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unreadable = |error| BadInput::new(format!("cannot read {}: {error}", directory.display()));
    Ok(drives::entries(directory).map_err(unreadable)?)
}

/// Round trip of idle links whose recording lacks it.
const WIFI: Duration = Duration::from_millis(30);
const CELLULAR: Duration = Duration::from_millis(60);
