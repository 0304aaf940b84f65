//! The token at the end of the page's address: 256 random bits in a file for its owner alone,
//! compared in constant time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use ring::hmac;
use roadweave_linux::random_bytes;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::secret;
use rustix::process::geteuid;
use zeroize::Zeroizing;

const BYTES: usize = 32;

/// 64 hexadecimal digits.
#[derive(Debug)]
pub(crate) struct Token(Zeroizing<String>);

impl Token {
    /// Fails when others may read the file or wrote it, or it has no token.
    pub(crate) fn read_or_make(path: &Path) -> Result<Self> {
        // Left by a power cut.
        let is_empty =
            |it: fs::Metadata| it.is_file() && it.len() == 0 && it.uid() == geteuid().as_raw();
        if fs::symlink_metadata(path).is_ok_and(is_empty) {
            fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
        match make(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("cannot make {}", path.display()))?,
        }
        Self::read(path)
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = secret::read(path)?;
        let owner = fs::metadata(path)?.uid();
        if owner != 0 && owner != geteuid().as_raw() && !geteuid().is_root() {
            let message = format!("{shown}: the file belongs to another user, who knows the token");
            return Err(BadInput::new(message).into());
        }
        let text = text.trim();
        let is_token = text.len() == 2 * BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        match is_token {
            true => Ok(Self(Zeroizing::new(text.to_owned()))),
            false => {
                let message =
                    format!("{shown}: not a token; remove the file to generate a new one");
                Err(BadInput::new(message).into())
            }
        }
    }

    /// The page's address. Browsers do not send the part behind `#`.
    pub(crate) fn address(&self, origin: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("{origin}/#token={}", &*self.0))
    }
}

/// Never replaces. Named once complete on disk: power cuts and other starts see no half file.
fn make(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let hex = |bytes: &[u8]| {
        let text = String::with_capacity(2 * bytes.len() + 1);
        bytes.iter().fold(text, |text, byte| text + &format!("{byte:02x}"))
    };
    let number = random_bytes::<8>().map_err(io::Error::other)?;
    let new = path.with_extension(format!("{}.new", hex(&number)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let bytes = Zeroizing::new(random_bytes::<BYTES>().map_err(io::Error::other)?);
    let text = Zeroizing::new(hex(&*bytes) + "\n");
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    // Unlike a rename, a link replaces nothing.
    let made = written.and_then(|()| fs::hard_link(&new, path));
    fs::remove_file(&new)?;
    made.and_then(|()| File::open(folder)?.sync_all())
}

/// Compares with the token in constant time. It holds only an HMAC of the token under a random key.
#[derive(Debug)]
pub(crate) struct Check {
    key: hmac::Key,
    code: hmac::Tag,
}

impl Check {
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
        assert_eq!(first.0, Token::read_or_make(&path).expect("read").0);
        let other = Token::read_or_make(&folder.path().join("other")).expect("made");
        assert_ne!(first.0, other.0);
        assert_eq!(*first.address("http://a"), format!("http://a/#token={}", &*first.0));
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
        for text in ["\n", "short", &"g".repeat(64), &"a".repeat(65)] {
            fs::write(&path, text).expect("mine");
            assert!(Token::read_or_make(&path).is_err(), "{text:?}");
        }
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        symlink(&target, &link).expect("a link");
        assert!(Token::read_or_make(&link).is_err());
        assert!(!target.exists(), "nothing is made through a link");
    }

    #[test]
    fn starts_at_one_time_have_one_token_and_an_empty_file_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        fs::write(&path, "").expect("mine");
        Token::read_or_make(&path).expect("replaced");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        for _ in 0..50 {
            fs::remove_file(&path).expect("mine");
            let starts = [0; 4].map(|_| {
                let path = path.clone();
                std::thread::spawn(move || Token::read_or_make(&path).map(|token| token.0))
            });
            let made = starts.map(|start| start.join().expect("no panic").expect("a token"));
            assert!(made.iter().all(|token| *token == made[0]));
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
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
