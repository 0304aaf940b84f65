//! A thread that asks the instance, so that nothing else waits for its answers.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use roadweave_node::history::History;
use roadweave_node::local::{self, SetUplink};
use roadweave_node::status::Status;

pub(super) const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) enum ReaderMessage {
    Status(Box<Status>),
    Away(String),
    Event(String),
}

impl ReaderMessage {
    pub(super) fn apply(self, history: &mut History, now: Instant) {
        match self {
            Self::Status(status) => history.take(now, *status),
            Self::Away(why) => history.miss(now, why),
            Self::Event(event) => history.add_event(now, event),
        }
    }
}

#[derive(Debug)]
pub(super) struct StatusReader {
    pub(super) messages: Receiver<ReaderMessage>,
    pub(super) changes: SyncSender<SetUplink>,
}

impl StatusReader {
    pub(super) fn start(socket: PathBuf) -> Result<Self> {
        let (sender, messages) = sync_channel(4);
        let (changes, changed) = sync_channel(1);
        let ask = move || {
            loop {
                let sent = match changed.recv_timeout(INTERVAL) {
                    Ok(change) => sender.send(ReaderMessage::Event(set(&socket, &change))),
                    Err(RecvTimeoutError::Timeout) => Ok(()),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let message = match local::status(&socket) {
                    Ok(status) => ReaderMessage::Status(Box::new(status)),
                    Err(error) => ReaderMessage::Away(error.to_string()),
                };
                if sent.and_then(|()| sender.send(message)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("status".to_owned()).spawn(ask)?;
        Ok(Self { messages, changes })
    }
}

fn set(socket: &Path, change: &SetUplink) -> String {
    let uplink = &change.uplink;
    match local::set_uplink(socket, change) {
        Ok(notice) => {
            let done = if change.paused == Some(true) { "paused" } else { "resumed" };
            let notice = notice.map(|notice| format!(": {notice}")).unwrap_or_default();
            format!("{uplink} is {done} by you{notice}")
        }
        Err(error) => format!("{uplink} is unchanged: {error}"),
    }
}
