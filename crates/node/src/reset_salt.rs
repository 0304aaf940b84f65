//! A salt in `DIRECTORY/INSTANCE.reset.json`, kept over restarts, that distinguishes this machine's
//! resets from those of others with the same key. Else a network that leads a session's packets to
//! another server would cause a reset that ends the session (RFC 9000 section 21.11).

use std::io;
use std::path::Path;

use roadweave_linux::{DeviceError, random_bytes};
use serde::{Deserialize, Serialize};

use crate::state::{Persisted, StateFile};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetSalt {
    salt: Option<[u8; 32]>,
}

impl Persisted for ResetSalt {
    const NAME: &'static str = "reset";

    fn encode(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    fn decode(text: &str) -> io::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }
}

/// If it cannot be kept, that is logged; clients then notice the next restart only by silence.
pub(crate) fn reset_salt(directory: &Path, name: &str) -> Result<[u8; 32], DeviceError> {
    let mut file = StateFile::<ResetSalt>::new(directory, name);
    if let Some(salt) = file.read().salt {
        return Ok(salt);
    }
    let salt = random_bytes()?;
    file.write_last(&ResetSalt { salt: Some(salt) });
    Ok(salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_draws_a_salt_once() {
        let machines = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
        let salt = |machine: usize| reset_salt(machines[machine].path(), "rw0").expect("a salt");
        let (first, second) = (salt(0), salt(1));
        assert_ne!(first, second);
        assert_eq!((salt(0), salt(1)), (first, second), "as after a restart");
        assert_ne!(first, [0; 32]);
    }
}
