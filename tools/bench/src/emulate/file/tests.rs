use super::*;

fn resolve(text: &str) -> Emulation {
    toml::from_str::<EmulateFile>(text).unwrap().resolve(Path::new("/nowhere")).unwrap()
}

#[test]
fn devices_are_named_after_their_link_and_addressed_by_its_number_or_as_given() {
    let links = "[[link]]\nname = 'a'\nrate_kbps = 9\n[[link]]\nname = 'b'\nrate_kbps = 9\n";
    let emulation = resolve(links);
    let link = &emulation.links[0];
    assert_eq!((&*link.near.interface, &*link.far.interface), ("a", "a-far"));
    let far = &emulation.links[1].far.addresses;
    assert_eq!(far[0], "10.201.2.1/24".parse().unwrap());
    assert_eq!(far[1], "fd00:201:2::1/64".parse().unwrap());
    let text = "[[link]]\nname = 'x'\nrate_kbps = 1\nnear_addresses = ['192.168.8.100/24']\n";
    let link = &resolve(text).links[0];
    assert_eq!(link.near.addresses, ["192.168.8.100/24".parse().unwrap()]);
}

#[test]
fn an_address_is_parsed_with_its_length_and_errors_give_an_example() {
    assert_eq!(parse_address("10.8.0.2/24").unwrap().to_string(), "10.8.0.2/24");
    assert_eq!(parse_address("10.8.0.2").unwrap().to_string(), "10.8.0.2/32", "a host");
    for text in ["", "10.8.0.2/33", "10.8.0/24", "fd00::/129", "10.8.0.2/", "10.8.0.2/-1"] {
        let error = parse_address(text).unwrap_err();
        assert!(error.contains(text) && error.contains("10.8.0.2/24"), "{error}");
    }
}
