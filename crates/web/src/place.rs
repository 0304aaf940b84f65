//! Where the server may listen: on loopback, and on addresses of interfaces that are not uplinks.
//! The kernel accepts a packet for any local address on every interface. So the socket is also
//! bound to the interface of the address, and hosts behind an uplink cannot reach it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use anyhow::{Context as _, Result, anyhow};
use roadweave_linux::Netlink;
use roadweave_node::history::History;
use roadweave_node::status::RoleStatus;
use roadweave_terminal::exit::BadInput;
use socket2::{Domain, Socket, Type};

const BACKLOG: i32 = 32;
/// A client knows its uplinks after this uptime, seconds; before, it may report none.
const SETTLED_S: f64 = 5.0;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Loopback, or allowed by the user.
    Free,
    /// A recreated interface has another index; sockets bound to the old one are not its own.
    Of { index: u32, name: String },
}

/// Refuses a wildcard without `anywhere`.
pub(crate) fn may_be(listen: SocketAddr, anywhere: bool) -> Result<()> {
    match listen.ip().to_canonical().is_unspecified() && !anywhere {
        true => {
            let message = format!(
                "--listen {listen}: this includes the addresses of uplinks, which strangers can \
                 reach; name an address of the LAN, or add --anywhere"
            );
            Err(BadInput::new(message).into())
        }
        false => Ok(()),
    }
}

impl Place {
    pub(crate) fn find(address: IpAddr, anywhere: bool) -> Result<Self> {
        let address = address.to_canonical();
        if anywhere || address.is_loopback() {
            return Ok(Self::Free);
        }
        let mut netlink = Netlink::open()?;
        let all = netlink.addresses()?;
        let has = all.iter().find(|(_, network)| network.addr() == address);
        let no_interface = || anyhow!("--listen {address}: no interface has it");
        let (index, _) = has.ok_or_else(no_interface)?;
        let link = netlink.links()?.into_iter().find(|link| link.index == *index);
        Ok(Self::Of { index: *index, name: link.ok_or_else(no_interface)?.name })
    }

    /// Whether the client has reported enough to serve here; an error if serving is not allowed.
    pub(crate) fn check(&self, history: &History) -> Result<bool, String> {
        let Self::Of { name: interface, .. } = self else { return Ok(true) };
        let Some(status) = &history.status else { return Ok(false) };
        let RoleStatus::Client(client) = &status.role else {
            return Err("the instance is not a client: its uplinks are unknown".to_owned());
        };
        let mut uplinks = client.uplinks.iter().map(|uplink| &uplink.name).chain(&client.paused);
        let mut of_paths = client.paths().filter_map(|path| path.uplink.as_ref());
        match uplinks.any(|name| name == interface) || of_paths.any(|name| name == interface) {
            true => Err(format!("{interface} is an uplink, which strangers may reach")),
            false => Ok(status.uptime_seconds >= SETTLED_S),
        }
    }

    pub(crate) fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let open = || -> io::Result<TcpListener> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            if let Self::Of { name, .. } = self {
                socket.bind_device(Some(name.as_bytes()))?;
            }
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        };
        open().with_context(|| format!("cannot listen on {address}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use roadweave_node::status::{ClientStatus, Status};

    use super::*;
    use crate::watcher::testing::{status_of, uplink};

    fn address<T: std::str::FromStr>(text: &str) -> T {
        text.parse().ok().expect("an address")
    }

    #[test]
    fn wildcards_are_refused_unless_they_are_wanted() {
        for wildcard in ["0.0.0.0:808", "[::]:808", "[::ffff:0.0.0.0]:1"].map(address) {
            let refused = may_be(wildcard, false);
            assert!(refused.is_err_and(|error| error.is::<BadInput>()), "{wildcard}");
            assert!(may_be(wildcard, true).is_ok());
        }
        assert!(may_be(address("192.168.50.1:808"), false).is_ok());
    }

    #[test]
    fn loopback_is_free_and_what_no_interface_has_is_refused() {
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(address) {
            assert_eq!(Place::find(loopback, false).expect("known"), Place::Free, "{loopback}");
        }
        let nowhere = address("192.0.2.77");
        assert!(Place::find(nowhere, false).is_err_and(|error| !error.is::<BadInput>()));
        assert_eq!(Place::find(nowhere, true).expect("wanted"), Place::Free);
    }

    #[test]
    fn no_page_is_served_on_an_uplink_nor_before_uplinks_are_known() {
        let place = Place::Of { index: 2, name: "wlan0".to_owned() };
        let mut history = History::new(Duration::from_secs(1));
        assert_eq!(place.check(&history), Ok(false));
        let mut client = ClientStatus::default();
        let mut uptime_seconds = 1.0;
        let mut take = |client: &ClientStatus| {
            let status = status_of(client.clone());
            history.take(Instant::now(), Status { uptime_seconds, ..status });
            uptime_seconds += SETTLED_S;
            place.check(&history)
        };
        assert_eq!(take(&client), Ok(false), "it has just begun");
        client.paused = vec!["wlan0".to_owned()];
        assert!(take(&client).is_err_and(|why| why.contains("is an uplink")));
        client.paused = vec!["wwan0".to_owned()];
        assert_eq!(take(&client), Ok(true));
        client.uplinks = vec![uplink("wlan0")];
        assert!(take(&client).is_err_and(|why| why.contains("is an uplink")));
        assert_eq!(Place::Free.check(&History::new(Duration::ZERO)), Ok(true));
    }
}
