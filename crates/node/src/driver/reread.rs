//! Rereading the configuration at runtime, by SIGHUP or by a request of the local socket.

use serde_json::{Value, json};

use crate::local::{LocalRequest, ReloadAnswer, RpcError};

/// A configuration that was read again.
#[derive(Clone, Debug)]
pub struct Reread<T> {
    /// The settings that take effect now.
    pub read: T,
    /// Changed fields that take effect only at the next start.
    pub ignored: Vec<String>,
}

/// Reads the configuration again; at a server, a proxy and an anchor in a thread of its own.
pub type Reload<T> = Box<dyn FnMut() -> Result<Reread<T>, String> + Send>;

impl<T> Reread<T> {
    pub(super) fn map<R>(self, map: impl FnOnce(T) -> R) -> Reread<R> {
        Reread { read: map(self.read), ignored: self.ignored }
    }

    pub(super) fn log_ignored(self) -> (T, Vec<String>) {
        if !self.ignored.is_empty() {
            let fields = self.ignored.join(", ");
            tracing::warn!(fields, "changed in the file, and ignored until the next start");
        }
        (self.read, self.ignored)
    }
}

pub(super) fn answer(reloaded: Result<ReloadAnswer, String>) -> Result<Value, RpcError> {
    reloaded.map(|answer| json!(answer)).map_err(RpcError::refused)
}

#[derive(Debug, Default)]
pub(super) struct Askers {
    /// Each with the number of the reading that answers it.
    waiting: Vec<(u64, LocalRequest)>,
}

impl Askers {
    pub(super) fn add(&mut self, reading: u64, request: LocalRequest) {
        match self.waiting.len() < ASKERS_MAX {
            true => self.waiting.push((reading, request)),
            false => request.answer(Err(RpcError::busy())),
        }
    }

    pub(super) fn on_read(&mut self, reading: u64, reloaded: &Result<ReloadAnswer, String>) {
        let due = self.waiting.extract_if(.., |(number, _)| *number <= reading);
        due.for_each(|(_, request)| request.answer(answer(reloaded.clone())));
    }
}

/// A caller that disconnected counts until its reading is over.
const ASKERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::testing::question;

    #[test]
    fn who_asks_while_the_file_is_read_is_answered_by_the_next_reading() {
        let mut askers = Askers::default();
        let (early, early_answer) = question("reload");
        let (late, late_answer) = question("reload");
        askers.add(1, early);
        askers.add(2, late);
        askers.on_read(1, &Err("unknown field `colour`".to_owned()));
        let refused = early_answer.try_recv().expect("answered").expect_err("refused");
        assert!(refused.message.contains("colour"), "{refused}");
        assert!(late_answer.try_recv().is_err(), "it has changed since");
        askers.on_read(2, &Ok(ReloadAnswer::default()));
        assert!(late_answer.try_recv().expect("answered").is_ok());
    }

    #[test]
    fn no_more_wait_than_may() {
        let mut askers = Askers::default();
        let answers: Vec<_> = (0..=ASKERS_MAX)
            .map(|_| {
                let (request, answer) = question("reload");
                askers.add(1, request);
                answer
            })
            .collect();
        let busy = answers.iter().filter(|answer| answer.try_recv().is_ok()).count();
        assert_eq!(busy, 1);
    }
}
