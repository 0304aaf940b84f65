//! Messages to streams of this replica, by key: a mailbox for each stream. A stream that does not
//! empty its mailbox loses it and ends, since it would miss messages.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roadweave_fleet::{Envelope, Kind, Published, PublishedTable, Version};
use roadweave_identity::PublicKey;
use tokio::sync::mpsc::{Receiver, Sender, channel};

#[derive(Clone, Debug)]
pub enum StreamMessage {
    Document(Kind, Version, Box<Envelope>),
    Table(Arc<PublishedTable>, Option<Arc<PublishedTable>>),
    Watch,
    Drain(bool),
    /// Messages may have been missed: read the database.
    Look,
    Published(Arc<Published>),
}

#[derive(Debug, Default)]
pub struct Mailboxes(Mutex<MailboxState>);

#[derive(Debug, Default)]
struct MailboxState {
    next: u64,
    boxes: HashMap<PublicKey, Vec<(u64, Sender<StreamMessage>)>>,
    tables: HashMap<PublicKey, Arc<PublishedTable>>,
    on: BTreeMap<(String, PublicKey), u32>,
}

pub struct Mailbox {
    mailboxes: Arc<Mailboxes>,
    key: PublicKey,
    number: u64,
    messages: Receiver<StreamMessage>,
}

impl Mailboxes {
    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mailbox for a stream of `key`. Beyond a bound the oldest of the key loses its own.
    pub fn open(self: &Arc<Self>, key: PublicKey) -> Mailbox {
        let (sender, messages) = channel(MESSAGES_MAX);
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        let all = state.boxes.entry(key).or_default();
        if all.len() >= STREAMS_OF_KEY_MAX {
            all.remove(0);
        }
        all.push((number, sender));
        Mailbox { mailboxes: Arc::clone(self), key, number, messages }
    }

    pub fn send(&self, key: &PublicKey, message: StreamMessage) {
        if let Some(all) = self.state().boxes.get_mut(key) {
            all.retain(|(_, sender)| sender.try_send(message.clone()).is_ok());
        }
    }

    pub fn send_all(&self, message: &StreamMessage) {
        for all in self.state().boxes.values_mut() {
            all.retain(|(_, sender)| sender.try_send(message.clone()).is_ok());
        }
    }

    pub fn publish_table(&self, key: &PublicKey, table: Arc<PublishedTable>) {
        let former = self.state().tables.insert(*key, Arc::clone(&table));
        self.send(key, StreamMessage::Table(table, former));
    }

    pub fn table(&self, key: &PublicKey) -> Option<Arc<PublishedTable>> {
        self.state().tables.get(key).cloned()
    }

    /// Counts a box of `tenant` that has moved to another proxy.
    pub fn moved(&self, tenant: &str, from: Option<PublicKey>, to: Option<PublicKey>) {
        let mut state = self.state();
        let place = |key| (tenant.to_owned(), key);
        if let Some(to) = to.filter(|_| state.on.len() < PROXIES_MAX) {
            *state.on.entry(place(to)).or_default() += 1;
        }
        if let Some(from) = from.map(place)
            && let Some(count) = state.on.get_mut(&from)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.on.remove(&from);
            }
        }
    }

    pub fn witnessed(&self) -> Vec<(String, PublicKey)> {
        self.state().on.keys().cloned().collect()
    }
}

impl Mailbox {
    pub async fn recv(&mut self) -> Option<StreamMessage> {
        self.messages.recv().await
    }

    pub fn is_superseded(&self) -> bool {
        let state = self.mailboxes.state();
        let later = state.boxes.get(&self.key).map_or(0, Vec::len);
        later >= STREAMS_OF_KEY_MAX
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut state = self.mailboxes.state();
        if let Some(all) = state.boxes.get_mut(&self.key) {
            all.retain(|(number, _)| *number != self.number);
            if all.is_empty() {
                state.boxes.remove(&self.key);
            }
        }
    }
}

const STREAMS_OF_KEY_MAX: usize = 4;
const MESSAGES_MAX: usize = 64;
const PROXIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::identity;

    fn key(seed: u8) -> PublicKey {
        identity(seed).public_key()
    }

    #[tokio::test]
    async fn a_stream_that_reads_nothing_loses_its_mailbox_and_others_do_not() {
        let mailboxes = Arc::new(Mailboxes::default());
        let (mut slow, mut other) = (mailboxes.open(key(1)), mailboxes.open(key(2)));
        for _ in 0..=MESSAGES_MAX {
            mailboxes.send(&key(1), StreamMessage::Watch);
            mailboxes.send(&key(2), StreamMessage::Watch);
            assert!(other.recv().await.is_some());
        }
        for _ in 0..MESSAGES_MAX {
            assert!(slow.recv().await.is_some());
        }
        assert!(slow.recv().await.is_none());
        drop(slow);
        assert_eq!(mailboxes.state().boxes.len(), 1);
    }

    #[tokio::test]
    async fn one_key_has_a_few_streams_and_the_oldest_go() {
        let mailboxes = Arc::new(Mailboxes::default());
        let mut all: Vec<Mailbox> =
            (0..=STREAMS_OF_KEY_MAX).map(|_| mailboxes.open(key(1))).collect();
        let mut other = mailboxes.open(key(2));
        assert!(all[0].recv().await.is_none() && all[0].is_superseded());
        mailboxes.send_all(&StreamMessage::Watch);
        assert!(all[1].recv().await.is_some() && other.recv().await.is_some());
        all.remove(0);
        assert_eq!(mailboxes.state().boxes[&key(1)].len(), STREAMS_OF_KEY_MAX);
    }

    #[test]
    fn a_proxy_is_witnessed_as_long_as_a_box_says_so() {
        let mailboxes = Mailboxes::default();
        mailboxes.moved("tram", None, Some(key(1)));
        mailboxes.moved("tram", None, Some(key(1)));
        mailboxes.moved("ferry", None, Some(key(1)));
        mailboxes.moved("tram", Some(key(1)), Some(key(2)));
        assert_eq!(mailboxes.witnessed().len(), 3);
        mailboxes.moved("tram", Some(key(1)), None);
        let of = |tenant: &str, seed| (tenant.to_owned(), key(seed));
        assert_eq!(mailboxes.witnessed(), [of("ferry", 1), of("tram", 2)]);
    }
}
