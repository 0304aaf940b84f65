//! What waits for nftables tables, which threads put in place: exclusions of a reload wait for
//! filters, the answer to it also for the table of split connections.

use crate::driver::reread;
use crate::local::{LocalRequest, ReloadAnswer, RpcError};

#[derive(Debug, Default)]
pub(super) struct WaitingActions {
    pub(super) exclusion: bool,
    reloads: Vec<(LocalRequest, ReloadAnswer)>,
}

impl WaitingActions {
    pub(super) fn add_reload(
        &mut self,
        request: LocalRequest,
        reloaded: Result<ReloadAnswer, String>,
    ) {
        match reloaded {
            Ok(_) if self.reloads.len() >= RELOADS_MAX => request.answer(Err(RpcError::busy())),
            Ok(reloaded) => self.reloads.push((request, reloaded)),
            failed => request.answer(reread::answer(failed)),
        }
    }

    pub(super) fn answer_reloads(&mut self) {
        for (request, reloaded) in self.reloads.drain(..) {
            request.answer(reread::answer(Ok(reloaded)));
        }
    }
}

/// A caller that disconnected counts until its reload is done.
const RELOADS_MAX: usize = 16;
