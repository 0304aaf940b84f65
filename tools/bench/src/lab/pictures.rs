//! Pictures for the lab: encodes a clip once, and compares the received pictures with it.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use roadweave_lab::compare::Setting;
use roadweave_lab::run::RunOutcome;
use roadweave_lab::traffic::{Detail, TrafficSpec};
use roadweave_lab::video::h264::AccessUnit;
use roadweave_lab::video::stream_log::SentStream;
use roadweave_terminal::out;

use super::drives;
use crate::demo::clip::{self, ClipSpec};
use crate::demo::decode;
use crate::demo::ffmpeg;

#[derive(Debug)]
pub struct Pictures {
    clip: PathBuf,
    units: Arc<[AccessUnit]>,
    /// Identifies the clip and ffmpeg's version.
    pub fingerprint: String,
}

impl Pictures {
    /// The generated clip of a setting, from the user's cache or newly encoded.
    pub fn prepare(setting: &Setting) -> anyhow::Result<Self> {
        let folder = cache()?;
        let spec =
            ClipSpec { source: None, seconds: setting.seconds, bitrate_bps: setting.bitrate_bps };
        let version = ffmpeg::version()?;
        let clip = folder.join(file_name(&spec, &version));
        if !clip.exists() {
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            encode(&spec, &clip)?;
        }
        let units = clip::read(&clip)
            .with_context(|| format!("cannot read the clip {}", clip.display()))?;
        let fingerprint = drives::digest_of(&[&drives::digest_of_file(&clip)?, &version]);
        Ok(Self { clip, units, fingerprint })
    }

    pub fn video(&self, setting: &Setting) -> TrafficSpec {
        TrafficSpec::clip(Arc::clone(&self.units), setting.duration())
    }

    /// Mean SSIM of the pictures that a viewer saw with those sent, 0..1. `name` is that of the
    /// run, for a warning if nothing could be decoded.
    pub fn ssim(&self, name: &str, outcome: &RunOutcome) -> anyhow::Result<f64> {
        let video = outcome.traffic.iter().find_map(|report| match &report.detail {
            Detail::Video(video) => Some(video),
            _ => None,
        });
        let Some(video) = video else { bail!("there is no video to compare") };
        let scratch = tempfile::tempdir()?;
        let path = |name: &str| scratch.path().join(name);
        let create = |name: &str| File::create(path(name)).map(BufWriter::new);
        let (mut sent, mut arrived) = (create("sent.csv")?, create("arrived.log")?);
        video.write_logs(&self.units, &mut sent, &mut arrived)?;
        sent.flush()?;
        arrived.flush()?;
        let stream = SentStream::read(BufReader::new(File::open(path("sent.csv"))?))?;
        let arrivals = path("arrived.log");
        let comparison =
            decode::compare(&stream, &video.playout, &arrivals, &self.clip, scratch.path())?;
        comparison.warn_of_nothing_decoded(name);
        Ok(comparison.mean())
    }
}

fn cache() -> anyhow::Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("roadweave"))
}

/// Unique for the clip's settings and the version of ffmpeg.
fn file_name(spec: &ClipSpec, ffmpeg_version: &str) -> String {
    let digest = drives::digest_of(&[&spec.recipe(), ffmpeg_version]);
    format!("clip-{}-{}s-{digest}.h264", spec.bitrate_bps, spec.seconds)
}

fn encode(spec: &ClipSpec, clip: &Path) -> anyhow::Result<()> {
    out::note(format_args!("encoding {} s of video to {}", spec.seconds, clip.display()));
    let bar = ProgressBar::new(spec.frames().into());
    // An unfinished clip must not have the final name.
    let part = clip.with_extension(format!("{}.part", std::process::id()));
    let encoded = spec.encode(&part, |frames| bar.set_position(frames));
    bar.finish_and_clear();
    if let Err(error) = encoded {
        let _ = fs::remove_file(&part);
        return Err(error.into());
    }
    fs::rename(&part, clip).with_context(|| format!("cannot write {}", clip.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_is_used_again_only_if_it_would_be_encoded_the_same() {
        let spec = ClipSpec { source: None, seconds: 3, bitrate_bps: 8_000_000 };
        let name = file_name(&spec, "ffmpeg version 5");
        assert_eq!(name, file_name(&spec.clone(), "ffmpeg version 5"));
        assert!(name.starts_with("clip-8000000-3s-") && name.ends_with(".h264"), "{name}");
        assert_ne!(name, file_name(&spec, "ffmpeg version 6"));
        let looped = ClipSpec { source: Some("drive.mp4".into()), ..spec };
        assert_ne!(name, file_name(&looped, "ffmpeg version 5"));
        assert!(looped.recipe().contains("drive.mp4") && looped.recipe().contains("libx264"));
    }
}
