//! A name server for the test network with the names of a test.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype, Ttl};
use domain::rdata::{A, Aaaa, Cname};
use roadweave_linux::netns::NetNs;

#[derive(Debug, Default)]
pub struct Zone {
    pub addresses: Vec<(String, IpAddr)>,
    pub alias: Option<(String, String)>,
    pub truncates: bool,
}

/// Answers at `address` over UDP and TCP from the zone, which a test may change.
pub fn serve(namespace: &NetNs, address: &str, names: &[(&str, &str)]) -> Arc<Mutex<Zone>> {
    let names = names.iter().map(|(name, address)| (name.to_string(), address.parse().unwrap()));
    let zone = Zone { addresses: names.collect(), ..Zone::default() };
    let zone = Arc::new(Mutex::new(zone));
    let address = SocketAddr::new(address.parse().unwrap(), 53);
    let (udp, tcp) = namespace
        .enter(|| (UdpSocket::bind(address).unwrap(), TcpListener::bind(address).unwrap()))
        .unwrap();
    let shared = zone.clone();
    spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = udp.recv_from(&mut buffer) {
            let zone = shared.lock().unwrap();
            let _ = udp.send_to(&answer(&zone, &buffer[..length], zone.truncates), from);
        }
    });
    let shared = zone.clone();
    spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut question = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut question).unwrap();
            let answer = answer(&shared.lock().unwrap(), &question, false);
            stream.write_all(&(answer.len() as u16).to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    zone
}

pub fn answer_with(question: &[u8], address: &str) -> Vec<u8> {
    let name = Message::from_slice(question).unwrap().sole_question().unwrap().qname().to_string();
    let addresses = vec![(name, address.parse().unwrap())];
    answer(&Zone { addresses, ..Zone::default() }, question, false)
}

fn answer(zone: &Zone, question: &[u8], truncated: bool) -> Vec<u8> {
    let asked = Message::from_slice(question).unwrap();
    let question = asked.sole_question().unwrap();
    let mut builder = MessageBuilder::new_vec().start_answer(asked, Rcode::NOERROR).unwrap();
    if truncated {
        builder.header_mut().set_tc(true);
        return builder.finish();
    }
    let parse = |name: &str| name.parse::<Name<Vec<u8>>>().unwrap();
    let mut name = parse(&question.qname().to_string());
    let ttl = Ttl::from_secs(1);
    if let Some((alias, target)) = zone.alias.as_ref().filter(|(alias, _)| parse(alias) == name) {
        name = parse(target);
        builder.push((parse(alias), ttl, Cname::new(name.clone()))).unwrap();
    }
    for (_, address) in zone.addresses.iter().filter(|(known, _)| parse(known) == name) {
        match address {
            IpAddr::V4(v4) if question.qtype() == Rtype::A => {
                builder.push((name.clone(), ttl, A::new(*v4))).unwrap()
            }
            IpAddr::V6(v6) if question.qtype() == Rtype::AAAA => {
                builder.push((name.clone(), ttl, Aaaa::new(*v6))).unwrap()
            }
            _ => {}
        }
    }
    builder.finish()
}
