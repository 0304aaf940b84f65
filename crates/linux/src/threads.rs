//! Starting threads, and what they share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::DeviceError;

/// Starts a thread; `name` has at most 15 bytes.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, DeviceError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|error| DeviceError::system("start a thread", error))
}

/// What `mutex` guards, even if a thread panicked while it held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
