//! `roadweave-controller backup` and `restore`.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::clock::now_ms;
use crate::controller::FolderOption;
use crate::controller::folder::Folder;
use crate::files::bad;
use crate::store::{BackupError, Database, backup};

/// What is written where.
#[derive(clap::Args)]
pub struct Backup {
    #[command(flatten)]
    at: FolderOption,
    /// The file to create; it must not exist yet. `-` writes to standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What is read where to.
#[derive(clap::Args)]
pub struct Restore {
    #[command(flatten)]
    at: FolderOption,
    /// A file written by `backup`, of a controller with the same controller.key; `-` reads standard
    /// input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// First rename an existing SQLite database to its name with .epoch-N; it is put back if the
    /// backup is invalid
    #[arg(long)]
    aside: bool,
}

pub fn backup(options: &Backup) -> Result<()> {
    let folder = Folder::open(&options.at.folder)?;
    let path = &options.file;
    let said = |rows: u64, medium: &dyn Display| {
        format!(
            "{rows} rows in {medium}. It holds no private key: keep controller.key and root.key \
             beside it."
        )
    };
    if is_standard(path) {
        let rows = write(&folder, &mut io::stdout())?;
        out::note(said(rows, &"standard output"));
        return Ok(());
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file =
        file.map_err(|error| BadInput::new(format!("cannot write {}: {error}", path.display())))?;
    let written = write(&folder, &mut file).and_then(|rows| {
        file.sync_all()?;
        Ok(rows)
    });
    let rows = written.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    Ok(out::line(said(rows, &path.display()))?)
}

fn write(folder: &Folder, out: &mut impl Write) -> Result<u64> {
    crate::controller::block_on(async {
        let store = folder.store().await?;
        let rows = backup::write(&store, &mut BufWriter::new(out), now_ms()).await?;
        store.close().await;
        Ok(rows)
    })
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub fn restore(options: &Restore) -> Result<()> {
    let folder = Folder::open(&options.at.folder)?;
    let _lock = folder.lock()?;
    let path = &options.file;
    let mut input: Box<dyn BufRead> = match is_standard(path) {
        true => Box::new(io::stdin().lock()),
        false => {
            let file = File::open(path).map_err(|error| {
                BadInput::new(format!("cannot read {}: {error}", path.display()))
            })?;
            Box::new(BufReader::new(file))
        }
    };
    let first = input.fill_buf().with_context(|| format!("cannot read {}", path.display()))?;
    if first.is_empty() {
        return Err(bad(path, "it is empty").into());
    }
    let aside = if options.aside { Some(Aside::make(&folder)?) } else { None };
    let before = folder.epoch();
    let restored = crate::controller::block_on(async {
        let store = folder.store().await?;
        // Written before the database commits: a database of an epoch not begun here is not served.
        let begin = |epoch| folder.begin_epoch(epoch).map_err(io::Error::other);
        let restored = backup::restore(&store, &mut input, before, begin).await;
        store.close().await;
        restored.map_err(|error| match error {
            BackupError::Invalid { .. } | BackupError::NotEmpty(_) => bad(path, error).into(),
            error => error.into(),
        })
    });
    let (rows, epoch) = restored.inspect_err(|_| {
        if let Some(aside) = &aside {
            aside.undo();
            let _ = folder.begin_epoch(before);
        }
    })?;
    let heads = folder.at("heads.json");
    if heads.exists() {
        fs::rename(&heads, folder.at("heads.before-restore.json"))
            .with_context(|| format!("cannot move {}", heads.display()))?;
    }
    out::line(format_args!(
        "{rows} rows restored; the epoch is {epoch} from now on. Boxes and proxies keep documents \
         newer than the backup until new ones replace them; proxies return the revocations that \
         they know."
    ))?;
    Ok(())
}

struct Aside {
    from: PathBuf,
    to: PathBuf,
    is_free: bool,
}

impl Aside {
    /// Moves the database aside, if any; once an epoch: a later one was never in use and stays.
    fn make(folder: &Folder) -> Result<Self> {
        let Database::Sqlite(from) = folder.database()? else {
            let message = "--aside is only for SQLite: create an empty database in PostgreSQL, and \
                           set it in controller.toml";
            return Err(BadInput::new(message).into());
        };
        let to = beside(&from, &format!(".epoch-{}", folder.epoch()));
        let is_free = !from.exists() || !to.exists();
        let aside = Self { from, to, is_free };
        if aside.is_free && aside.from.exists() {
            // The main file last: without it a second try begins again.
            aside.rename(&aside.from, &aside.to)?;
        }
        Ok(aside)
    }

    fn undo(&self) {
        if self.is_free && self.to.exists() {
            for part in PARTS {
                let _ = fs::remove_file(beside(&self.from, part));
            }
            let _ = self.rename(&self.to, &self.from);
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        for part in PARTS {
            let (from, to) = (beside(from, part), beside(to, part));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot move {}", from.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// The files of a SQLite database; the main file last.
const PARTS: [&str; 3] = ["-wal", "-shm", ""];
