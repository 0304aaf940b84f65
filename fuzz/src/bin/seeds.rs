//! Writes the initial inputs of the search, and keeps inputs that it found.
//!
//! ```text
//! seeds CORPUS           the targets' own inputs and those in kept/, one folder per target
//! seeds --keep FOLDER    kept/FOLDER.hex from the files in FOLDER, one per line
//! ```

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [corpus] => write_corpus(Path::new(corpus)),
        [option, folder] if option == "--keep" => keep(Path::new(folder)),
        _ => Err(Error::other("usage: seeds CORPUS | seeds --keep FOLDER")),
    }
}

fn write_corpus(corpus: &Path) -> Result<()> {
    for (target, mut inputs) in roadweave_fuzz::seeds() {
        let kept = fs::read_to_string(format!("kept/{target}.hex")).unwrap_or_default();
        for (number, line) in kept.lines().enumerate() {
            let input = from_hex(line);
            inputs.push(input.ok_or_else(|| Error::other(format!("{target}: line {number}")))?);
        }
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (number, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}

/// Sorted, so that equal inputs give an equal file; the largest inputs are left out.
fn keep(folder: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for file in fs::read_dir(folder)? {
        let input = fs::read(file?.path())?;
        if input.len() <= KEPT_BYTES_MAX {
            lines.push(input.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n");
        }
    }
    lines.sort();
    let target = folder.file_name().ok_or_else(|| Error::other("no folder"))?;
    fs::create_dir_all("kept")?;
    fs::write(Path::new("kept").join(target).with_extension("hex"), lines.concat())
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let digits = line.as_bytes().chunks(2).map(std::str::from_utf8);
    digits.map(|pair| u8::from_str_radix(pair.ok()?, 16).ok()).collect()
}

/// Longer inputs are not kept, since the repository stores them.
const KEPT_BYTES_MAX: usize = 128;
