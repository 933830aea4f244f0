//! Addresses that people type, and those that peers send.

use murmur_network::parse_address;
use murmur_protocol::{Address, codec};

use super::assert_harmless;

pub(super) fn read(bytes: &[u8]) -> bool {
    let typed = parse_address(&String::from_utf8_lossy(bytes));
    match &typed {
        Ok((_, address)) => {
            assert!(address.is_well_formed());
            assert_harmless(address.as_str());
            assert_eq!(parse_address(address.as_str()), Ok((None, address.clone())));
            assert_eq!(codec::decode(&codec::encode(address)).as_ref(), Ok(address));
        }
        Err(error) => assert_harmless(&error.to_string()),
    }
    let sent = codec::decode::<Address>(bytes).ok().filter(Address::is_well_formed);
    if let Some(address) = &sent {
        assert_harmless(address.as_str());
    }
    typed.is_ok() || sent.is_some()
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let peer = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    let circuit = format!("/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{peer}/p2p-circuit/p2p/{peer}");
    let typed = ["/ip6/2001:db8::7/tcp/4001", "/dns/example.org/udp/4001/quic-v1", &circuit];
    let sent = Address::new("/ip4/192.0.2.7/tcp/4001").expect("an address");
    typed.iter().map(|text| text.as_bytes().to_vec()).chain([codec::encode(&sent)]).collect()
}
