//! Passwords: argon2id, a few at a time, and as long for an unknown name.

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use tokio::sync::Semaphore;

use super::{Problem, Result};
use crate::keys;

#[derive(Clone, Debug)]
pub struct Passwords(Arc<Semaphore>);

impl Default for Passwords {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Passwords {
    /// The hash of a new password; an error if its length is wrong or too many are hashed now.
    pub async fn hash(&self, password: &str) -> Result<String> {
        check(password).map_err(Problem::invalid)?;
        let password = password.to_owned();
        self.run(move || hash(&password)).await
    }

    /// Whether `password` has `hash` (`None`: unknown person). Fails if too many are hashed.
    pub async fn verify(&self, password: &str, hash: Option<String>) -> Result<bool> {
        let password = password.chars().take(LENGTH_MAX + 1).collect::<String>();
        self.run(move || {
            let there = hash.is_some();
            let hash = hash.unwrap_or_else(|| DUMMY_HASH.clone());
            let hash = PasswordHash::new(&hash);
            let fits = |hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok();
            hash.is_ok_and(fits) && there
        })
        .await
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let busy = || Problem::new(503, "busy", "too many logins at once; try again");
        let permit = Arc::clone(&self.0).acquire_owned();
        let permit = tokio::time::timeout(WAIT_MAX, permit).await.map_err(|_| busy())?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| busy())
    }
}

pub fn check(password: &str) -> Result<(), String> {
    let length = password.chars().count();
    if (LENGTH_MIN..=LENGTH_MAX).contains(&length) {
        return Ok(());
    }
    Err(format!("password: {LENGTH_MIN} to {LENGTH_MAX} characters"))
}

/// In the PHC format. Takes some 20 ms. Panics if the system has no entropy.
pub fn hash(password: &str) -> String {
    let mut salt = [0; 16];
    keys::fill(&mut salt);
    let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    hash.expect("argon2id takes any password and 16 bytes of salt").to_string()
}

/// For an unknown person, who then takes as long.
static DUMMY_HASH: LazyLock<String> = LazyLock::new(|| hash("nobody"));
const AT_ONCE: usize = 2;
const WAIT_MAX: Duration = Duration::from_secs(3);
const LENGTH_MIN: usize = 12;
const LENGTH_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_fits_its_hash_alone() {
        let passwords = Passwords::default();
        let hash = passwords.hash("correct horse battery").await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$"), "{hash}");
        let fits = |text: &'static str, hash: Option<&String>| {
            let (passwords, hash) = (passwords.clone(), hash.cloned());
            async move { passwords.verify(text, hash).await.unwrap() }
        };
        assert!(fits("correct horse battery", Some(&hash)).await);
        assert!(!fits("correct horse batterz", Some(&hash)).await);
        assert!(!fits("nobody", None).await);
        assert!(!fits("x", Some(&"no hash".to_owned())).await);
        assert!(passwords.hash("short").await.is_err());
        assert!(passwords.hash(&"x".repeat(257)).await.is_err());
    }
}
