//! Files of anchors, proxies, boxes and routers. A number stands for the key of each.

use roadweave_identity::Identity;

use super::TestNetwork;

pub fn public(number: u8) -> String {
    Identity::from_seed([number; 32]).public_key().to_string()
}

pub fn own(network: &TestNetwork, number: u8) -> String {
    let key = Identity::from_seed([number; 32]).to_base64();
    format!("private_key = \"{key}\"\nstate_directory = \"{}\"\n", network.path("").display())
}

/// A box in a `list` of a proxy or an anchor; `more` are further lines of it.
pub fn device(list: &str, number: u8, addresses: &str, more: &str) -> String {
    let key = public(number);
    format!("[[{list}]]\nname = \"box\"\npublic_key = \"{key}\"\naddresses = [{addresses}]\n{more}")
}

pub fn proxy(name: &str, number: u8) -> String {
    format!("[[proxies]]\nname = \"{name}\"\npublic_key = \"{}\"\n", public(number))
}

pub fn tenant(name: &str, anchor: u8, address: &str) -> String {
    let key = public(anchor);
    format!(
        "[[tenants]]\nname = \"{name}\"\ngateways = [\"10.77.0.1/16\"]\n\
         anchor = {{ public_key = \"{key}\", addresses = [\"{address}\"] }}\n"
    )
}

pub fn client(network: &TestNetwork, number: u8, proxies: &[(u8, u16)]) -> String {
    let lists = ["server", "[proxies]"].iter().zip(proxies).map(|(list, (number, port))| {
        let key = public(*number);
        format!("[{list}]\naddresses = [\"198.51.100.1:{port}\"]\npublic_key = \"{key}\"\n")
    });
    let (own, lists) = (own(network, number), lists.collect::<String>());
    format!("name = \"box\"\n{own}{lists}[uplinks]\ninclude = [\"eth1\", \"eth2\"]\n")
}

/// A link of a router over uplink `number`, by the last numbers of its own and its peer's address.
pub fn link(number: u8, own: u8, peer: u8) -> String {
    format!(
        "[[links]]\nname = \"eth{number}\"\ninterface = \"eth{number}\"\n\
         listen = \"10.{number}.0.{own}:6081\"\npeer = \"10.{number}.0.{peer}:6081\"\n"
    )
}
