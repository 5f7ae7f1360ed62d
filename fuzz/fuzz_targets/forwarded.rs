//! The address that a trusted proxy appended is found, whatever the client sent before it.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tidegate_policy::{Addresses, ForwardingHeader};

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: &str = "192.0.2.7";

fuzz_target!(|written: &[u8]| {
    let Ok(trusted) = "10.0.0.0/8".parse() else { return };
    let addresses = Addresses::default().with_trusted_proxies([trusted]);
    for (name, header, appended) in [
        ("x-forwarded-for", ForwardingHeader::XForwardedFor, CLIENT.to_owned()),
        ("forwarded", ForwardingHeader::Forwarded, format!("for={CLIENT};proto=https")),
    ] {
        let line = [written, b", ", appended.as_bytes()].concat();
        let Ok(value) = HeaderValue::from_bytes(&line) else { return };
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static(name), value)]);
        let addresses = addresses.clone().with_header(header);
        assert_eq!(addresses.client(&headers, PROXY).to_string(), CLIENT);
        // The same header from an untrusted peer is ignored.
        assert_eq!(addresses.client(&headers, [198, 51, 100, 1].into()).to_string(), "198.51.100.1");
        // Arbitrary input alone must not cause a panic.
        let Ok(value) = HeaderValue::from_bytes(written) else { return };
        addresses.client(&HeaderMap::from_iter([(http::HeaderName::from_static(name), value)]), PROXY);
    }
});
