//! Two redundant routers between two namespaces, with a link for each cable between them.

use std::net::SocketAddr;
use std::path::Path;

use super::tunnel::{TunnelFiles, write};

#[derive(Clone, Copy, Debug)]
pub struct RouterCable<'a> {
    pub interface: &'a str,
    pub client: SocketAddr,
    pub server: SocketAddr,
}

pub fn write_router_files(
    directory: &Path,
    cables: &[RouterCable<'_>],
) -> anyhow::Result<TunnelFiles> {
    let link = |cable: &RouterCable<'_>, listen: SocketAddr, peer: SocketAddr| {
        let name = cable.interface;
        format!(
            "[[links]]\nname = \"{name}\"\ninterface = \"{name}\"\n\
             listen = \"{listen}\"\npeer = \"{peer}\"\n"
        )
    };
    let file = |inner: &str, tun: &str, links: String| {
        format!("addresses = [\"{inner}\"]\n[tun]\nname = \"{tun}\"\n{links}")
    };
    let client = cables.iter().map(|cable| link(cable, cable.client, cable.server)).collect();
    let server = cables.iter().map(|cable| link(cable, cable.server, cable.client)).collect();
    Ok(TunnelFiles {
        client: write(directory, "router-client.toml", &file("10.77.0.2/24", "rw0", client))?,
        server: write(directory, "router-server.toml", &file("10.77.0.1/24", "rw1", server))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadweave_config::{RouterFile, load};

    #[test]
    fn both_files_are_read_back_and_fit_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let at = |text: &str| text.parse().unwrap();
        let cables = [("lan0", "198.51.100"), ("lan1", "192.0.2")].map(|(interface, net)| {
            let end = |host: u8| at(&format!("{net}.{host}:6081"));
            RouterCable { interface, client: end(1), server: end(2) }
        });
        let files = write_router_files(directory.path(), &cables).unwrap();
        let client: RouterFile = load(&files.client).unwrap();
        let server: RouterFile = load(&files.server).unwrap();
        assert_eq!((client.links.len(), server.links.len()), (2, 2));
        for (near, far) in client.links.iter().zip(&server.links) {
            assert_eq!((near.peer, far.peer), (Some(far.listen), Some(near.listen)));
        }
    }
}
