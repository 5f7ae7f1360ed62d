use proptest::prelude::{Strategy, any, proptest};
use proptest::sample::select;

use super::*;
use crate::identity::IdentitySpec;

fn key(parts: &[(ClientKind, &[u8])]) -> Vec<u8> {
    let mut key = Vec::new();
    for (kind, bytes) in parts {
        append(&mut key, *kind, Some(bytes));
    }
    key
}

fn displayed(kind: ClientKind, bytes: &[u8]) -> String {
    ClientName::from_key(&key(&[(kind, bytes)])).to_string()
}

fn parse(text: &str) -> Result<ClientName, ClientNameError> {
    text.parse()
}

#[test]
fn name_displays_kind_and_value() {
    assert_eq!(displayed(ClientKind::Ip, &[203, 0, 113, 7]), "ip:203.0.113.7");
    assert_eq!(displayed(ClientKind::User, b"bob+news@example.org"), "user:bob+news@example.org");
    assert_eq!(displayed(ClientKind::Fingerprint, &[0xab; 16]), format!("fingerprint:{}", "ab".repeat(16)));
    assert_eq!(displayed(ClientKind::Anonymous, b""), "anonymous");
    assert_eq!(ClientName::from_key(b"").to_string(), "everybody");
    let both = key(&[(ClientKind::Ip, &[10, 0, 0, 1]), (ClientKind::User, "Zoë".as_bytes())]);
    assert_eq!(ClientName::from_key(&both).to_string(), "ip:10.0.0.1+user:Zoë");
}

#[test]
fn secret_is_displayed_as_prefix_and_hash() {
    assert_eq!(displayed(ClientKind::ApiKey, b"sk_live_51H_very_secret"), "api_key:sk_l…#b59c1698");
    assert!(!displayed(ClientKind::Cookie, b"short").contains("short"));
    assert_ne!(displayed(ClientKind::ApiKey, b"short"), displayed(ClientKind::ApiKey, b"other"));
    let typed = parse("api_key:sk_live_51H_very_secret").unwrap();
    assert_eq!(format!("{typed} {typed:?}").matches("very").count(), 0);
}

#[test]
fn secret_can_be_named_in_full_or_by_hash() {
    let (secret, other) =
        (key(&[(ClientKind::ApiKey, b"sk_live_51H_very_secret")]), key(&[(ClientKind::ApiKey, b"x")]));
    let spellings = ["sk_live_51H_very_secret", "sk_l…#b59c1698", "sk_l...#b59c1698", "...#b59c1698"];
    for spelling in spellings {
        let name = parse(&format!("api_key:{spelling}")).unwrap();
        assert!(name.names(&secret) && !name.names(&other), "{spelling}");
    }
    assert!(!parse("api_key:pk_l…#b59c1698").unwrap().names(&secret), "the prefix differs");
    assert!(!parse("user:sk_live_51H_very_secret").unwrap().names(&secret));
}

#[test]
fn control_and_invisible_characters_are_percent_encoded() {
    assert_eq!(displayed(ClientKind::User, b"a\r\n\x1b[2J\"\xff%"), "user:a%0D%0A%1B[2J\"%FF%25");
    assert_eq!(displayed(ClientKind::User, "a\u{202e}b".as_bytes()), "user:a%E2%80%AEb");
    assert_eq!(displayed(ClientKind::User, "bob\u{ad}".as_bytes()), "user:bob%C2%AD");
    assert_eq!(
        displayed(ClientKind::User, b" Bob  Ray  "),
        "user:%20Bob  Ray%20%20",
        "spaces around it are invisible"
    );
    assert_eq!(displayed(ClientKind::Tenant, b" "), "tenant:%20");
    assert_eq!(displayed(ClientKind::User, b"a+ip:1.2.3.4"), "user:a%2Bip:1.2.3.4", "not two identities");
    let long = displayed(ClientKind::User, &[b'x'; 5_000]);
    assert!(long.len() < 100, "{long}");
}

#[test]
fn key_of_ipv6_address_uses_the_counted_prefix() {
    let identities = Identities::new(IdentitySpec::default()).unwrap();
    let name = parse("ip:2001:db8::5").unwrap();
    let counted = key(&[(ClientKind::Ip, &"2001:db8::".parse::<std::net::Ipv6Addr>().unwrap().octets())]);
    assert_eq!(name.key(&identities).as_ref(), Some(&counted));
    assert_eq!(parse("user:bob").unwrap().key(&identities), Some(key(&[(ClientKind::User, b"bob")])));
    assert_eq!(parse("api_key:sk_l…#b59c1698").unwrap().key(&identities), None);
}

#[test]
fn invalid_name_error_does_not_repeat_the_name() {
    let error = |text: &str| parse(text).unwrap_err();
    assert_eq!(error("sk_live_51H_very_secret"), ClientNameError::NoKind);
    assert_eq!(error("apikey:sk_live"), ClientNameError::UnknownKind { nearest: ClientKind::ApiKey });
    assert_eq!(error("user:"), ClientNameError::Empty { kind: ClientKind::User });
    assert_eq!(error("ip:999.1.1.1"), ClientNameError::NotAnAddress);
    assert_eq!(error("fingerprint:xyz"), ClientNameError::NotAFingerprint);
    assert_eq!(error("user:100%"), ClientNameError::Encoding);
    assert_eq!(error("ip:10.0.0.1+user:"), ClientNameError::Empty { kind: ClientKind::User });
    assert!(!error("sk_live_51H_very_secret").to_string().contains("sk_live"));
}

fn identity() -> impl Strategy<Value = (ClientKind, Vec<u8>)> {
    let text = any::<String>().prop_map(String::into_bytes);
    let bytes = proptest::collection::vec(any::<u8>(), 1..200);
    (select(&ClientKind::NAMED[..]), text, bytes).prop_map(|(kind, text, bytes)| match kind {
        ClientKind::Ip if bytes.len() < 16 => (kind, vec![10, 0, 0, bytes[0]]),
        ClientKind::Ip | ClientKind::Fingerprint => (kind, [&bytes[..], &[1; 16]].concat()[..16].to_vec()),
        _ if text.is_empty() => (kind, bytes),
        _ => (kind, text),
    })
}

proptest! {
    #[test]
    fn displayed_name_parses_to_the_same_client(
        parts in proptest::collection::vec(identity(), 0..3),
    ) {
        let parts: Vec<_> = parts.iter().map(|(kind, bytes)| (*kind, bytes.as_slice())).collect();
        let key = key(&parts);
        let name = ClientName::from_key(&key);
        let text = name.to_string();
        let again = parse(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert!(again.names(&key), "{text:?}");
        assert_eq!(again.to_string(), text);
        assert!(!text.chars().any(char::is_control));
    }
}

#[test]
fn name_of_an_identity_takes_the_value_as_it_is() {
    let identities = Identities::new(IdentitySpec::default()).unwrap();
    for value in ["bob", "bob+ip:10.0.0.1", "%2B", "sk_l…#b59c1698", "a:b"] {
        let name = ClientName::of_identity(&format!("user:{value}")).unwrap();
        assert_eq!(name.key(&identities), Some(key(&[(ClientKind::User, value.as_bytes())])), "{value}");
    }
    assert_eq!(ClientName::of_identity("bob"), Err(ClientNameError::NoKind));
    assert_eq!(ClientName::of_identity("foo:bob"), Err(ClientNameError::OtherKind));
    assert_eq!(
        ClientName::of_identity("usr:bob"),
        Err(ClientNameError::UnknownKind { nearest: ClientKind::User })
    );
    assert_eq!(ClientName::of_identity("ip:bob"), Err(ClientNameError::NotAnAddress));
    assert_eq!(ClientName::of_identity("user:"), Err(ClientNameError::Empty { kind: ClientKind::User }));
}
