//! `roadweave-controller backup` and `restore`.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use roadweave_control::clock::now_ms;
use roadweave_control::store::BackupError;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::Place;
use crate::folder::Folder;

/// What is written where.
#[derive(clap::Args)]
pub struct Backup {
    #[command(flatten)]
    place: Place,
    /// The file, which must not be there yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What is read where to.
#[derive(clap::Args)]
pub struct Restore {
    #[command(flatten)]
    place: Place,
    /// A file that `backup` has written, of a controller with the same controller.key
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Writes everything that the database holds; the controller may run meanwhile.
pub fn backup(options: &Backup) -> Result<()> {
    let folder = Folder::open(&options.place.folder)?;
    let path = &options.file;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file =
        file.map_err(|error| BadInput::new(format!("cannot write {}: {error}", path.display())))?;
    let written = crate::block_on(async {
        let store = folder.store().await?;
        let mut out = BufWriter::new(file);
        let rows = store.backup(&mut out, now_ms()).await?;
        out.get_ref().sync_all()?;
        store.close().await;
        Ok(rows)
    });
    let rows = written.inspect_err(|_| {
        // Half a backup is none.
        let _ = fs::remove_file(path);
    })?;
    out::line(format_args!(
        "{rows} rows in {}. It holds no private key: keep controller.key and root.key beside it.",
        path.display()
    ))?;
    Ok(())
}

/// Reads a backup into an empty database, and begins a new epoch.
pub fn restore(options: &Restore) -> Result<()> {
    let folder = Folder::open(&options.place.folder)?;
    let _lock = folder.lock()?;
    let path = &options.file;
    let file = File::open(path)
        .map_err(|error| BadInput::new(format!("cannot read {}: {error}", path.display())))?;
    let summary = crate::block_on(async {
        let store = folder.store().await?;
        let summary = store.restore(&mut BufReader::new(file), folder.epoch()).await;
        store.close().await;
        summary.map_err(|error| match error {
            BackupError::Invalid { .. } | BackupError::NotEmpty(_) => {
                anyhow::Error::new(BadInput::new(format!("{}: {error}", path.display())))
            }
            error => error.into(),
        })
    })?;
    folder.saw_epoch(summary.epoch)?;
    // The ends of the logs are those of the backup from now on.
    let heads = folder.at("heads.json");
    if heads.exists() {
        fs::rename(&heads, folder.at("heads.before-restore.json"))
            .with_context(|| format!("cannot move {}", heads.display()))?;
    }
    out::line(format_args!(
        "{} rows restored; the epoch is {} from now on. Boxes and proxies keep what is newer than \
         the backup until they hear otherwise; revocations that proxies know come back by \
         themselves.",
        summary.rows, summary.epoch
    ))?;
    Ok(())
}
