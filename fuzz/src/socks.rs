//! A SOCKS5 client's messages end where they say.

use roadweave_proto::wire::{SOCKS_MESSAGE_MAX, SocksConnect, SocksGreeting};

/// Parses the bytes as both messages of a client, whole and cut to the message.
pub fn run(data: &[u8]) {
    check(data, SocksGreeting::parse);
    check(data, SocksConnect::parse);
}

fn check<T: PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>,
) {
    match parse(data) {
        Ok(Some((message, length))) => {
            assert!(length <= SOCKS_MESSAGE_MAX && length <= data.len());
            assert_eq!(parse(&data[..length]), Ok(Some((message, length))));
            assert_eq!(parse(&data[..length - 1]), Ok(None));
        }
        Ok(None) => assert!(data.len() < SOCKS_MESSAGE_MAX),
        Err(_) => {}
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let name = [&[5, 1, 0, 3, 9][..], b"a.example", &[0, 80]].concat();
    let six = [&[5, 1, 0, 4][..], &[0xfd; 16], &[1, 187]].concat();
    vec![vec![5, 1, 0], vec![5, 1, 0, 1, 192, 0, 2, 1, 0, 80], name, six]
}
