//! Parses the addresses in `X-Forwarded-For` and `Forwarded`, last first.
//!
//! Each hop is an address, or `None` if it cannot be parsed. Both lists are split from the right: the entries of proxies
//! are there, while the text left of them may be malformed, for example with an open quote.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::host::split_port;

/// The hops of one line of `X-Forwarded-For`.
pub(super) fn x_forwarded_for(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    let entries = line.rsplit(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    entries.filter(|entry| !entry.is_empty()).map(node)
}

/// The hops of one line of `Forwarded`.
pub(super) fn forwarded(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    elements(line).map(|element| {
        let mut found = None;
        for pair in (ReverseSplit { rest: Some(element), separator: b';' }) {
            let Some(at) = pair.iter().position(|&byte| byte == b'=') else { continue };
            if pair[..at].trim_ascii().eq_ignore_ascii_case(b"for") {
                // Two `for` parameters are ambiguous.
                if found.replace(&pair[at + 1..]).is_some() {
                    return None;
                }
            }
        }
        node(unquoted(found?.trim_ascii())?)
    })
}

/// The elements of one line of `Forwarded` as text, last first.
pub(super) fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let elements = ReverseSplit { rest: Some(line), separator: b',' }.map(<[u8]>::trim_ascii);
    elements.filter(|element| !element.is_empty())
}

/// Removes quotes. Escapes are rejected, as an address needs none.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    let inner = match value {
        [b'"', inner @ .., b'"'] => inner,
        bare => bare,
    };
    (!inner.iter().any(|byte| matches!(byte, b'"' | b'\\'))).then_some(inner)
}

/// `192.0.2.7`, `192.0.2.7:80`, `2001:db8::7`, `[2001:db8::7]` or `[2001:db8::7]:80`.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (host, port) = split_port(text);
    if !port.is_none_or(is_port) {
        return None;
    }
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::from),
    }
}

/// A number, or the obfuscated form of RFC 7239.
fn is_port(text: &str) -> bool {
    let is_hidden = text.strip_prefix('_').is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    });
    is_hidden || text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Splits a list from the right, ignoring separators in quotes.
struct ReverseSplit<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for ReverseSplit<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        let mut in_quotes = false;
        for (at, &byte) in rest.iter().enumerate().rev() {
            if byte == b'"' && !is_escaped(&rest[..at]) {
                in_quotes = !in_quotes;
            } else if byte == self.separator && !in_quotes {
                self.rest = Some(&rest[..at]);
                return Some(&rest[at + 1..]);
            }
        }
        Some(rest)
    }
}

/// Whether the byte after `before` is escaped by backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn read(hops: impl Iterator<Item = Option<IpAddr>>) -> Vec<String> {
        hops.map(|hop| hop.map_or("-".to_owned(), |address| address.to_string())).collect()
    }

    #[test]
    fn x_forwarded_for_parses_addresses_with_and_without_port() {
        let line = b"192.0.2.1, 192.0.2.2:80,[2001:db8::1],[2001:db8::2]:_p, 2001:db8::3, 192.0.2.3:99999, \
            [::1, ::1], 1.2.3.4:, fe80::1%eth0, 1.2.3.4:+80, 01.2.3.4, \xff";
        let mut hops = read(x_forwarded_for(line));
        hops.reverse();
        let expected = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8::3"];
        assert_eq!(hops[..5], expected);
        assert!(hops[5..].iter().all(|hop| hop == "-"), "{hops:?}");
    }

    #[test]
    fn forwarded_parses_quotes_and_parameters() {
        let line = br#"for=192.0.2.1;proto=http , by="a,b;c"; FOR = "192.0.2.2" ,for="_x", host=a, for=1.1.1.1;for=2.2.2.2, for="1.1.\1.1",for="#;
        let mut hops = read(forwarded(line));
        hops.reverse();
        assert_eq!(hops, ["192.0.2.1", "192.0.2.2", "-", "-", "-", "-", "-"]);
    }

    proptest! {
        #[test]
        fn last_entry_is_parsed_after_any_text(
            before in prop::collection::vec(any::<u8>(), 0..60),
            address in any::<IpAddr>(),
            quoted in any::<bool>(),
        ) {
            let text = match address {
                IpAddr::V6(address) => format!("\"[{address}]:80\""),
                IpAddr::V4(address) if quoted => format!("\"{address}\""),
                IpAddr::V4(address) => address.to_string(),
            };
            let line = [&before, format!(", for={text};proto=https").as_bytes()].concat();
            prop_assert_eq!(forwarded(&line).next(), Some(Some(address)));
            let line = [&before, format!(",{address}").as_bytes()].concat();
            prop_assert_eq!(x_forwarded_for(&line).next(), Some(Some(address)));
        }

        #[test]
        fn line_has_at_most_one_hop_per_part(line in prop::collection::vec(any::<u8>(), 0..80)) {
            let parts = line.split(|&byte| byte == b',').count();
            prop_assert!(x_forwarded_for(&line).count() <= parts);
            prop_assert!(forwarded(&line).count() <= parts);
        }
    }
}
