//! Writes the inputs that the search starts from: `seeds CORPUS_DIR`, a folder for each target.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into());
    for (target, inputs) in roadweave_fuzz::seeds() {
        let folder = PathBuf::from(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, input) in inputs.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
