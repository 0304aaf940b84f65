//! The token that the page's address ends with, 256 random bits: in a file that only its owner may
//! read, and compared in a time that says nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use ring::hmac;
use roadweave_device::random_bytes;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::secret;
use rustix::process::geteuid;
use zeroize::Zeroizing;

/// Bytes of a token.
const BYTES: usize = 32;

/// What whoever opens the page must have: 64 hexadecimal digits.
#[derive(Debug)]
pub(crate) struct Token(Zeroizing<String>);

impl Token {
    /// That of `path`, or a new one that is in it from now on.
    ///
    /// # Errors
    /// When others may read the file or wrote it, it is no token, or it cannot be made.
    pub(crate) fn read_or_make(path: &Path) -> Result<Self> {
        match make(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("cannot make {}", path.display()))?,
        }
        Self::read(path)
    }

    /// That of `path`.
    ///
    /// # Errors
    /// As [`read_or_make`](Self::read_or_make), and when there is no file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = secret::read(path)?;
        let owner = fs::metadata(path)?.uid();
        if owner != 0 && owner != geteuid().as_raw() && !geteuid().is_root() {
            let message = format!("{shown}: it belongs to another user, who knows the token");
            return Err(BadInput::new(message).into());
        }
        let text = text.trim();
        let is_token = text.len() == 2 * BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        match is_token {
            true => Ok(Self(Zeroizing::new(text.to_owned()))),
            false => {
                let message =
                    format!("{shown}: this is no token; without the file a new one is made");
                Err(BadInput::new(message).into())
            }
        }
    }

    /// The page's address. The token is behind the `#`, which browsers send nowhere.
    pub(crate) fn address(&self, host: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("http://{host}/#token={}", &*self.0))
    }
}

/// Makes the file, which must not be there, nor as a link to another.
fn make(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let bytes = Zeroizing::new(random_bytes::<BYTES>().map_err(io::Error::other)?);
    let hex = bytes
        .iter()
        .fold(String::with_capacity(2 * BYTES), |text, byte| text + &format!("{byte:02x}"));
    let written =
        file.write_all(Zeroizing::new(hex + "\n").as_bytes()).and_then(|()| file.sync_all());
    // Half a token would stay one that nobody can use.
    written.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

/// Tells whether what somebody shows is the token. It has the token's code by a key of its own
/// alone, and the comparison takes as long whatever is shown.
#[derive(Debug)]
pub(crate) struct Check {
    key: hmac::Key,
    code: hmac::Tag,
}

impl Check {
    /// # Errors
    /// When the system gives no random bytes.
    pub(crate) fn new(token: &Token) -> Result<Self> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &random_bytes::<32>()?);
        let code = hmac::sign(&key, token.0.as_bytes());
        Ok(Self { key, code })
    }

    pub(crate) fn is_right(&self, shown: &[u8]) -> bool {
        hmac::verify(&self.key, shown, self.code.as_ref()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("below/token");
        let first = Token::read_or_make(&path).expect("made");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        let again = Token::read_or_make(&path).expect("read");
        assert_eq!(first.0, again.0);
        let other = Token::read_or_make(&folder.path().join("other")).expect("made");
        assert_ne!(first.0, other.0);
        let address = first.address("127.0.0.1:8088");
        assert_eq!(*address, format!("http://127.0.0.1:8088/#token={}", &*first.0));
    }

    #[test]
    fn a_file_that_others_can_read_and_one_without_a_token_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        Token::read_or_make(&path).expect("made");
        for mode in [0o640, 0o604, 0o620, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mine");
            let error = Token::read_or_make(&path).expect_err("open to others");
            assert!(error.is::<BadInput>() && error.to_string().contains("chmod 600"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mine");
        for text in ["", "short", &"g".repeat(64), &"a".repeat(65)] {
            fs::write(&path, text).expect("mine");
            assert!(Token::read_or_make(&path).is_err(), "{text:?}");
        }
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        symlink(&target, &link).expect("a link");
        assert!(Token::read_or_make(&link).is_err());
        assert!(!target.exists(), "nothing is made through a link");
    }

    #[test]
    fn the_token_alone_is_right() {
        let token = Token(Zeroizing::new("ab".repeat(32)));
        let check = Check::new(&token).expect("random bytes");
        assert!(check.is_right("ab".repeat(32).as_bytes()));
        let (first, last) = ("bb".to_owned() + &"ab".repeat(31), "ab".repeat(31) + "aa");
        for wrong in ["", "ab", &first, &last, &"ab".repeat(33), &"AB".repeat(32)] {
            assert!(!check.is_right(wrong.as_bytes()), "{wrong:?}");
        }
    }
}
