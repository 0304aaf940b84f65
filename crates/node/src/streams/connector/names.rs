//! Look-ups of host names by this machine's resolver, in a few threads since they block.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};

use roadweave_linux::threads::lock;

use roadweave_linux::{DeviceError, Waker};

use super::super::table::Number;

const THREADS: usize = 16;
const WAITING_MAX: usize = 512;
const ADDRESSES_MAX: usize = 8;

#[derive(Debug)]
pub(super) struct Names {
    questions: SyncSender<(Number, String, u16)>,
    answers: Receiver<(Number, Vec<SocketAddr>)>,
}

impl Names {
    pub(super) fn start(waker: &Waker) -> Result<Self, DeviceError> {
        let (questions, asked) = sync_channel(WAITING_MAX);
        let (answering, answers) = channel();
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..THREADS {
            let (asked, answering, waker) = (asked.clone(), answering.clone(), waker.clone());
            let work = move || answer(&asked, &answering, &waker);
            let thread = std::thread::Builder::new().name("names".into()).spawn(work);
            thread
                .map_err(|error| DeviceError::system("start a thread for name look-ups", error))?;
        }
        Ok(Self { questions, answers })
    }

    pub(super) fn ask(&self, number: Number, name: &str, port: u16) -> bool {
        self.questions.try_send((number, name.to_owned(), port)).is_ok()
    }

    pub(super) fn poll(&self) -> Option<(Number, Vec<SocketAddr>)> {
        self.answers.try_recv().ok()
    }
}

fn answer(
    asked: &Mutex<Receiver<(Number, String, u16)>>,
    answers: &Sender<(Number, Vec<SocketAddr>)>,
    waker: &Waker,
) {
    loop {
        let question = lock(asked).recv();
        let Ok((number, name, port)) = question else { return };
        let found = (name.as_str(), port).to_socket_addrs();
        let addresses = found.map_or_else(|_| Vec::new(), |all| all.take(ADDRESSES_MAX).collect());
        if answers.send((number, in_turns(addresses))).is_err() {
            return;
        }
        waker.wake();
    }
}

/// Alternates the families (RFC 8305 section 4).
fn in_turns(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_ipv4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first_is_ipv4);
    let mut second = second.into_iter();
    let mut all: Vec<SocketAddr> =
        first.into_iter().flat_map(|address| [Some(address), second.next()]).flatten().collect();
    all.extend(second);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let addresses = ["[::1]:1", "[::2]:1", "[::3]:1", "192.0.2.1:1"];
        let addresses = addresses.map(|text| text.parse().expect("an address")).to_vec();
        let texts = in_turns(addresses).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts, ["[::1]:1", "192.0.2.1:1", "[::2]:1", "[::3]:1"]);
    }
}
