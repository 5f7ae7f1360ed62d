//! Reads the members of a JSON object that a strict parser rejects.
//!
//! Services read more than RFC 8259 allows: text with half of a surrogate pair, numbers beyond all bounds, `NaN`, deep nesting,
//! bytes that are not UTF-8. Users choose some claims themselves, such as a display name, so a user could otherwise have
//! a token that the service reads and the gateway does not. Only the texts and numbers of the object itself are read.

use serde_json::{Map, Value};

/// The members of the object in `bytes` that are texts or numbers; `None` if it is not an object. Of two members with one name the last
/// one counts, as in most services. Takes linear time and does not recurse.
pub(super) fn members(bytes: &[u8]) -> Option<Map<String, Value>> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).trim();
    let mut rest = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut found = Map::new();
    while let Some((member, others)) = split_member(rest) {
        rest = others;
        let Some((name, value)) = split_name(member) else { continue };
        // An object or a list names nobody. Its name still counts, because it replaces an earlier member.
        found.insert(name, scalar(value));
    }
    Some(found)
}

/// Splits the text at the first comma that is not inside of a value.
fn split_member(text: &str) -> Option<(&str, &str)> {
    if text.is_empty() {
        return None;
    }
    let mut depth = 0_u32;
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => at = end_of_text(text, at) - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
        at += 1;
    }
    Some((text, ""))
}

/// Splits a member into its name and the text of its value.
fn split_name(member: &str) -> Option<(String, &str)> {
    let member = member.trim();
    if !member.starts_with('"') {
        return None;
    }
    let end = end_of_text(member, 0);
    let value = member[end..].trim_start().strip_prefix(':')?;
    Some((unescaped(member.get(1..end - 1)?), value.trim()))
}

fn scalar(value: &str) -> Value {
    match value.strip_prefix('"') {
        Some(text) => Value::String(unescaped(text.strip_suffix('"').unwrap_or(text))),
        None if value.starts_with(['{', '[']) => Value::Null,
        None => serde_json::from_str(value).unwrap_or(Value::Null),
    }
}

/// The offset behind the text that begins at `start`.
fn end_of_text(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Decodes the escapes of a text. Half of a surrogate pair becomes U+FFFD.
fn unescaped(text: &str) -> String {
    let mut units = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        units.extend(before.encode_utf16());
        let mut characters = escape.chars();
        let character = match characters.next() {
            Some('u') => {
                let code = escape.get(1..5).and_then(|digits| u16::from_str_radix(digits, 16).ok());
                if code.is_some() {
                    characters = escape[5..].chars();
                }
                units.push(code.unwrap_or(REPLACEMENT));
                None
            }
            Some('b') => Some('\u{8}'),
            Some('f') => Some('\u{c}'),
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            other => other,
        };
        units
            .extend(character.into_iter().flat_map(|character| character.encode_utf16(&mut [0; 2]).to_vec()));
        rest = characters.as_str();
    }
    units.extend(rest.encode_utf16());
    String::from_utf16_lossy(&units)
}

const REPLACEMENT: u16 = 0xfffd;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    fn member(text: &[u8], name: &str) -> Option<Value> {
        members(text)?.remove(name)
    }

    #[test]
    fn member_of_an_object_that_is_not_strict_json_is_read() {
        let deep = [&b"{\"m\":"[..], &[b'['; 300], &[b']'; 300], b",\"sub\":\"bob\"}"].concat();
        let objects = [
            &b"{\"sub\":\"bob\",\"name\":\"\\ud800\"}"[..],
            b"{\"name\":\"\\ud800\\\"},\",\"sub\":\"bob\"}",
            b"{\"\\ud800\":1,\"sub\":\"bob\"}",
            b" {\"m\":1e999 , \"sub\" : \"bob\" } ",
            b"{\"m\":NaN,\"sub\":\"bob\"}",
            b"{\"m\":\"\xff\",\"sub\":\"bob\"}",
            b"\xef\xbb\xbf{\"sub\":\"b\\u006fb\"}",
            b"{\"sub\":\"eve\",\"m\":-Infinity,\"s\\u0075b\":\"bob\"}",
            &deep,
        ];
        for object in objects {
            let sub = member(object, "sub");
            assert_eq!(sub, Some(Value::from("bob")), "{}", object.escape_ascii());
        }
        assert_eq!(member(b"{\"a\":NaN,\"sub\":42}", "sub"), Some(Value::from(42)));
        assert_eq!(member(b"{\"sub\":\"bob\",\"sub\":[NaN]}", "sub"), Some(Value::Null));
        assert_eq!(member(b"{\"m\":{\"sub\":\"eve\"},\"x\":NaN}", "sub"), None);
        assert_eq!(member(b"{\"sub\":\"a\\ud800\"}", "sub"), Some(Value::from("a\u{fffd}")));
        for text in [&b""[..], b"[]", b"\"sub\"", b"{", b"{\"sub\":\"bob\""] {
            assert_eq!(members(text), None, "{}", text.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn scalar_members_of_strict_json_are_the_same(
            object in prop::collection::hash_map(any::<String>(), any::<(String, Option<i64>)>(), 0..5),
        ) {
            let value = |(text, number): &(String, Option<i64>)| {
                number.map_or_else(|| Value::from(text.as_str()), Value::from)
            };
            let object: Map<String, Value> = object.iter().map(|(name, member)| (name.clone(), value(member))).collect();
            let text = serde_json::to_vec(&object).unwrap();
            prop_assert_eq!(members(&text), Some(object));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in "[{}\\[\\],:\"u0-9d\\\\ \u{e9}]{0,40}") {
            let _ = members(bytes.as_bytes());
            let _ = members(format!("{{{bytes}}}").as_bytes());
        }
    }
}
