//! Subscribers of the local socket and of HTTP. Only the newest update is kept: a slow subscriber
//! skips updates, and never blocks the event loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roadweave_linux::Waker;

use roadweave_linux::threads::lock;

#[derive(Clone, Debug)]
pub(crate) struct Subscribers {
    shared: Arc<SharedPublication>,
    waker: Waker,
}

#[derive(Debug)]
struct SharedPublication {
    newest: Mutex<Publication>,
    changed: Condvar,
    places: Arc<()>,
    has_new: AtomicBool,
}

#[derive(Debug, Default)]
struct Publication {
    number: u64,
    text: Arc<str>,
    is_over: bool,
}

#[derive(Debug)]
pub(crate) struct Subscription {
    shared: Arc<SharedPublication>,
    seen: u64,
    _place: Arc<()>,
}

impl Subscribers {
    pub(crate) fn new(waker: Waker) -> Self {
        let shared = SharedPublication {
            newest: Mutex::default(),
            changed: Condvar::new(),
            places: Arc::default(),
            has_new: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), waker }
    }

    /// `None` if the limit is reached, which leaves connections to other callers.
    pub(crate) fn subscribe(&self) -> Option<Subscription> {
        let shared = Arc::clone(&self.shared);
        let publication = shared.lock();
        let is_free = Arc::strong_count(&shared.places) <= SUBSCRIBERS_MAX;
        let (place, seen) = (is_free.then(|| Arc::clone(&shared.places))?, publication.number);
        drop(publication);
        shared.has_new.store(true, Ordering::Release);
        self.waker.wake();
        Some(Subscription { shared, seen, _place: place })
    }

    pub(crate) fn is_empty(&self) -> bool {
        Arc::strong_count(&self.shared.places) == 1
    }

    pub(crate) fn take_new(&self) -> bool {
        self.shared.has_new.load(Ordering::Acquire)
            && self.shared.has_new.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn publish(&self, text: &str) {
        let mut publication = self.shared.lock();
        publication.number += 1;
        publication.text = text.into();
        drop(publication);
        self.shared.changed.notify_all();
    }

    pub(crate) fn end(&self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Subscription {
    /// `None` if the publisher ended or is silent for too long.
    pub(crate) fn next(&mut self) -> Option<Arc<str>> {
        let (shared, seen) = (&self.shared, self.seen);
        let is_seen =
            |publication: &mut Publication| publication.number == seen && !publication.is_over;
        let waited = shared.changed.wait_timeout_while(shared.lock(), SILENCE_MAX, is_seen);
        let (publication, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        self.seen = publication.number;
        (!publication.is_over).then(|| Arc::clone(&publication.text))
    }

    /// Updates are at least `interval` apart. Ends if the callback fails.
    pub(crate) fn send_all<E>(
        mut self,
        interval: Duration,
        mut send: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(publication) = self.next() {
            send(&publication)?;
            std::thread::sleep(interval);
        }
        Ok(())
    }
}

impl SharedPublication {
    fn lock(&self) -> MutexGuard<'_, Publication> {
        lock(&self.newest)
    }
}

/// Bytes. Small because buffered updates get old; the kernel raises it to its minimum.
pub(crate) const SEND_BUFFER: usize = 2_048;
/// At least eight are left for the local socket, since HTTP has fewer.
const SUBSCRIBERS_MAX: usize = 12;
/// A running loop publishes something each second.
const SILENCE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_slow_reader_skips_updates_and_gets_the_newest() {
        let subscribers = Subscribers::new(Waker::new().expect("an eventfd"));
        subscribers.publish("before");
        let mut subscription = subscribers.subscribe().expect("room");
        assert!(subscribers.take_new() && !subscribers.take_new());
        for number in 0..1000 {
            subscribers.publish(&number.to_string());
        }
        assert_eq!(subscription.next().as_deref(), Some("999"));
        subscribers.publish("last");
        assert_eq!(subscription.next().as_deref(), Some("last"));
        subscribers.end();
        assert_eq!(subscription.next(), None);
        drop(subscription);
        assert!(subscribers.is_empty());
    }

    #[test]
    fn a_place_counts_from_the_question_on() {
        let subscribers = Subscribers::new(Waker::new().expect("an eventfd"));
        let mut places: Vec<_> =
            std::iter::repeat_with(|| subscribers.subscribe()).take(SUBSCRIBERS_MAX + 1).collect();
        assert!(places.pop().expect("the last").is_none());
        assert!(places.iter().all(Option::is_some));
        places.pop();
        assert!(subscribers.subscribe().is_some());
    }

    #[test]
    fn words_keep_their_distance_and_end_with_the_one_who_listens() {
        let subscribers = Subscribers::new(Waker::new().expect("an eventfd"));
        let subscription = subscribers.subscribe().expect("room");
        let began = Instant::now();
        let listener = std::thread::spawn(move || {
            let mut seen = 0;
            subscription.send_all(Duration::from_millis(50), |_| {
                seen += 1;
                if seen == 4 { Err(began.elapsed()) } else { Ok(()) }
            })
        });
        while !listener.is_finished() {
            subscribers.publish("word");
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = listener.join().expect("no panic").expect_err("it ends");
        assert!(took >= Duration::from_millis(150), "{took:?}");
        assert!(subscribers.is_empty());
    }
}
