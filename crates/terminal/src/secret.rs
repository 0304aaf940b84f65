//! Files that nobody but their owner may read: private keys, and what goes with them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Result;
use zeroize::Zeroizing;

use crate::exit::BadInput;

/// What such a file says.
///
/// # Errors
/// Which file, and what is wrong with it: it cannot be read, or others may.
pub fn read(path: &Path) -> Result<Zeroizing<String>> {
    let shown = path.display();
    let text = fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|error| BadInput::new(format!("cannot read {shown}: {error}")))?;
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        let message = format!("{shown}: others may read this key: chmod 600 {shown}");
        return Err(BadInput::new(message).into());
    }
    Ok(text)
}
