//! Files that only their owner may read: private keys and the like.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Result;
use zeroize::Zeroizing;

use crate::exit::BadInput;

/// Reads such a file; fails if others may read it.
pub fn read(path: &Path) -> Result<Zeroizing<String>> {
    let shown = path.display();
    let text = fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|error| BadInput::new(format!("cannot read {shown}: {error}")))?;
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        let message = format!("{shown}: other users can read this key; run: chmod 600 {shown}");
        return Err(BadInput::new(message).into());
    }
    Ok(text)
}
