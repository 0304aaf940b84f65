//! What is read again on SIGHUP, in a thread: with thousands of clients it takes a second, in which
//! the loop must not stand still.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use crate::{DeviceError, Waker};

/// Reads something again, one time after the other.
pub(super) struct Reread<T> {
    jobs: Sender<()>,
    outcomes: Receiver<Result<T, String>>,
    /// Whether the thread is at work, and whether another signal came meanwhile.
    busy: bool,
    again: bool,
}

impl<T: Send + 'static> Reread<T> {
    /// Starts the thread; `waker` wakes the loop for outcomes. It ends with this.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(super) fn start(
        mut read: Box<dyn FnMut() -> Result<T, String> + Send>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        let (jobs, taken) = channel::<()>();
        let (sender, outcomes) = channel();
        let work = move || {
            while taken.recv().is_ok() && sender.send(read()).is_ok() {
                waker.wake();
            }
        };
        std::thread::Builder::new()
            .name("reload".into())
            .spawn(work)
            .map_err(|error| DeviceError::system("start a thread", error))?;
        Ok(Self { jobs, outcomes, busy: false, again: false })
    }

    /// Reads it again, or once more after what is under way.
    pub(super) fn begin(&mut self) {
        if self.busy {
            self.again = true;
        } else {
            self.busy = self.jobs.send(()).is_ok();
        }
    }

    /// What was read, if it could be.
    pub(super) fn poll(&mut self) -> Option<T> {
        let outcome = match self.outcomes.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
        };
        self.busy = false;
        if std::mem::take(&mut self.again) {
            self.begin();
        }
        outcome.inspect_err(|error| tracing::error!("nothing was changed: {error}")).ok()
    }
}
