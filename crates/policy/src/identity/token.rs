//! Finds signed tokens in the value of a header.
//!
//! Services read `Authorization` in many ways: the second word, the last word, everything after the seventh byte, the value
//! without every `Bearer `. Some decode a signature with other bytes in it or after it. If the gateway read the value in one
//! way only, a client could choose a spelling in which its service finds a token and the gateway does not. So every token in
//! the value counts, wherever it begins and whatever follows it.

use std::borrow::Cow;

use jsonwebtoken::{Algorithm, decode_header};
use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::claims_text;
use super::cookie::unescaped;

/// The maximum number of tokens in one header. It bounds the number of verifications.
pub(super) const MAX_TOKENS: usize = 4;

/// The schemes that services remove wherever they occur.
const SCHEME: &[u8] = b"Bearer";
/// The same, only with a space after them: without it they may be a part of a token.
const SHORT_SCHEMES: [&[u8]; 2] = [b"Token ", b"JWT "];

/// A text that may be a token.
#[derive(Clone, Copy)]
pub(super) struct TokenText<'v> {
    /// The header and the payload, each with the dot after it.
    pub(super) signed: &'v [u8],
    /// The rest of the value, which begins with the signature.
    rest: &'v [u8],
}

/// The parts of a token's header that verification needs.
pub(super) struct TokenHeader {
    pub(super) alg: Algorithm,
    pub(super) kid: Option<String>,
}

/// All texts that may be tokens: a JSON object in Base64, a dot, a payload, a dot. A token may begin inside a word, as
/// services remove prefixes by their length. Takes linear time.
pub(super) fn tokens(value: &[u8]) -> impl Iterator<Item = TokenText<'_>> {
    let dots = memchr::memchr_iter(b'.', value);
    let mut begin = 0;
    dots.clone().zip(dots.skip(1)).flat_map(move |(first, second)| {
        let segment = &value[std::mem::replace(&mut begin, first + 1)..first];
        let payload = &value[first + 1..second];
        let is_payload = !payload.is_empty() && payload.iter().all(|byte| is_digit(*byte));
        let digits = segment.iter().rev().take_while(|byte| is_digit(**byte)).count();
        let starts =
            (first - digits..first).filter(move |at| is_payload && begins_object(&value[*at..first]));
        starts.map(move |start| TokenText { signed: &value[start..=second], rest: &value[second + 1..] })
    })
}

/// The value without `Bearer` and white space, if they occur anywhere but at the beginning: services that remove all of them
/// join the parts of a token.
pub(super) fn joined(value: &[u8]) -> Option<Vec<u8>> {
    let is_scheme =
        |at: usize| value.get(at..at + SCHEME.len()).is_some_and(|word| word.eq_ignore_ascii_case(SCHEME));
    let begin = if is_scheme(0) { SCHEME.len() } else { 0 };
    let begin = begin + value[begin..].iter().take_while(|byte| is_space(**byte)).count();
    let rest = &value[begin..];
    let repeats_scheme = memchr::memchr2_iter(b'b', b'B', rest).any(|at| is_scheme(begin + at));
    if !repeats_scheme && !rest.iter().any(|byte| is_space(*byte)) {
        return None;
    }
    let (mut joined, mut at) = (Vec::with_capacity(rest.len()), begin);
    while let Some(byte) = value.get(at) {
        if is_scheme(at) {
            at += SCHEME.len();
            continue;
        }
        let is_here = |scheme: &&&[u8]| {
            value[at..].get(..scheme.len()).is_some_and(|word| word.eq_ignore_ascii_case(scheme))
        };
        if let Some(scheme) = SHORT_SCHEMES.iter().find(is_here) {
            at += scheme.len();
            continue;
        }
        if !is_space(*byte) {
            joined.push(*byte);
        }
        at += 1;
    }
    Some(joined)
}

/// The user and the password in `Basic` credentials: services accept a token or a key as one of them.
pub(super) fn basic(value: &[u8]) -> Option<Vec<u8>> {
    const BASIC: &[u8] = b"Basic";
    let (scheme, rest) = value.split_at_checked(BASIC.len())?;
    scheme.eq_ignore_ascii_case(BASIC).then(|| decoded(rest))
}

/// All readings of a value in which services may find tokens, the value itself first.
pub(super) fn readings(value: &[u8], is_cookie: bool) -> SmallVec<[Cow<'_, [u8]>; 2]> {
    let mut all = SmallVec::new();
    all.push(Cow::Borrowed(value));
    all.extend(joined(value).map(Cow::Owned));
    all.extend(basic(value).map(Cow::Owned));
    all.extend(is_cookie.then(|| unescaped(value)).flatten().map(Cow::Owned));
    all
}

/// Whether the value has only one reading and at most one token.
pub(super) fn is_plain(value: &[u8], is_cookie: bool) -> bool {
    tokens(value).nth(1).is_none() && readings(value, is_cookie).len() == 1
}

impl TokenText<'_> {
    /// The parsed header.
    pub(super) fn header(&self) -> Option<TokenHeader> {
        match decode_header(self.signed) {
            Ok(header) => Some(TokenHeader { alg: header.alg, kid: header.kid }),
            // Services ignore members that they do not use.
            Err(_) => self.lenient_header(),
        }
    }

    fn lenient_header(&self) -> Option<TokenHeader> {
        let mut members = claims_text::members(&decoded(self.signed.split(|byte| *byte == b'.').next()?))?;
        let alg = members.get("alg")?.as_str()?.parse().ok()?;
        let kid = match members.remove("kid") {
            Some(Value::String(kid)) => Some(kid),
            _ => None,
        };
        Some(TokenHeader { alg, kid })
    }

    /// The claims of a token that a strict parser rejects.
    pub(super) fn lenient_claims(&self) -> Option<Map<String, Value>> {
        claims_text::members(&decoded(self.signed.split(|byte| *byte == b'.').nth(1)?))
    }

    /// What the signature is for.
    pub(super) fn message(&self) -> &[u8] {
        self.signed.strip_suffix(b".").unwrap_or(self.signed)
    }

    /// A signature of `length` bytes as canonical Base64; `None` if there are fewer. Like lenient decoders, this accepts both
    /// alphabets of Base64, skips all other bytes and ignores what follows.
    pub(super) fn signature(&self, length: usize) -> Option<String> {
        let digits = (length * 8).div_ceil(6);
        let sent = self.rest.iter().take_while(|byte| **byte != b'.');
        let mut sextets: Vec<usize> = sent.filter_map(|byte| sextet(*byte)).take(digits).collect();
        if sextets.len() < digits {
            return None;
        }
        // The unused bits of the last digit.
        *sextets.last_mut()? &= !0 << (digits * 6 - length * 8);
        Some(sextets.into_iter().map(|sextet| char::from(ALPHABET[sextet])).collect())
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn sextet(byte: u8) -> Option<usize> {
    let number = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' | b'+' => 62,
        b'_' | b'/' => 63,
        _ => return None,
    };
    Some(number.into())
}

/// The bytes of Base64 text in any alphabet. Other characters are skipped.
pub(super) fn decoded(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_usize, 0_u32);
    for sextet in text.iter().filter_map(|byte| sextet(*byte)) {
        (bits, count) = (bits << 6 | sextet, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.extend(u8::try_from(bits >> count));
            bits &= (1 << count) - 1;
        }
    }
    bytes
}

/// The length in bytes of a Base64 number without leading zeros.
pub(super) fn number_length(text: &str) -> usize {
    let sextets: Vec<usize> = text.bytes().filter_map(sextet).collect();
    let bits = sextets.len() * 6 / 8 * 8;
    let zeros = match sextets.iter().position(|sextet| *sextet != 0) {
        Some(at) => at * 6 + sextets[at].leading_zeros() as usize + 6 - usize::BITS as usize,
        None => bits,
    };
    bits.saturating_sub(zeros).div_ceil(8)
}

/// A digit of the alphabet of tokens.
fn is_digit(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// All bytes that lenient servers treat as white space; the last two are Latin-1.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x85 | 0xa0)
}

/// Whether Base64 text begins with `{` and a quote or white space; parsers skip white space before it, and some of them a byte
/// order mark.
fn begins_object(text: &[u8]) -> bool {
    match text {
        [b'e', b'y', b'I' | b'J' | b'K' | b'L' | b'A' | b'B', ..]
        | [b'e', b'w', b'o' | b'p' | b'0' | b'1' | b'k' | b'l', ..] => true,
        // The first byte is white space or begins a byte order mark.
        [b'I', b'A' | b'C' | b'H', ..]
        | [b'C', b'Q' | b'S' | b'X' | b'g' | b'i' | b'n', ..]
        | [b'D', b'Q' | b'S' | b'X', ..]
        | [b'7', b'7', ..] => begins_object_after_space(text),
        _ => false,
    }
}

fn begins_object_after_space(text: &[u8]) -> bool {
    /// Text that begins with more white space than this may be a token too: a bound on the work for each place in a value.
    const DIGITS: usize = 24;
    let start = decoded(&text[..text.len().min(DIGITS)]);
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    let mut rest = start.iter().skip_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    match rest.next() {
        Some(b'{') => true,
        Some(_) => false,
        None => text.len() > DIGITS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: &str) -> Vec<String> {
        tokens(value.as_bytes()).map(|token| String::from_utf8(token.signed.to_vec()).unwrap()).collect()
    }

    #[test]
    fn token_is_found_wherever_it_begins() {
        for before in ["", "Bearer ", "X ", "X y, Bearer ", "1234567", "token=\"", "a.b.", "a.b", "\u{a0}"] {
            for after in ["", " x", ", Bearer", "\"", "=", ".x"] {
                let all = found(&format!("{before}eyJh.eyJz.sig{after}"));
                assert!(all.contains(&"eyJh.eyJz.".to_owned()), "{before:?} {after:?} {all:?}");
            }
        }
        for none in ["", ".", "..", "eyJh", "eyJh.eyJz", "eyJh..sig", "abcd.eyJz.sig", "eyJh.ey!z.sig"] {
            assert_eq!(found(none), [""; 0], "{none}");
        }
        assert_eq!(found("eyJh.eyJz.s eyJi.eyJz.s"), ["eyJh.eyJz.", "eyJi.eyJz."]);
        assert_eq!(found("eyJheyJi.eyJz.s"), ["eyJheyJi.eyJz.", "eyJi.eyJz."]);
    }

    fn encoded(bytes: &[u8]) -> String {
        let sextets = |part: &[u8]| {
            let bits =
                part.iter().chain(&[0; 3]).take(3).fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            (0..=part.len())
                .map(|digit| char::from(ALPHABET[bits >> (18 - 6 * digit) & 63]))
                .collect::<Vec<_>>()
        };
        bytes.chunks(3).flat_map(sextets).collect()
    }

    #[test]
    fn token_whose_header_begins_with_white_space_is_found() {
        let many = " ".repeat(100);
        for space in ["", " ", "\n", "\t", "\r\n", "  \n\t ", "\u{feff}", "\u{feff} ", &many] {
            let header = encoded(format!("{space}{{\"alg\":\"HS256\"}}").as_bytes());
            let all = found(&format!("Bearer {header}.eyJz.sig"));
            assert!(all.contains(&format!("{header}.eyJz.")), "{space:?} {all:?}");
        }
        for other in ["  [1]", "\n\"a\"", "\u{feff}a", " x"] {
            assert_eq!(found(&format!("{}.eyJz.sig", encoded(other.as_bytes()))), [""; 0], "{other:?}");
        }
    }

    #[test]
    fn value_with_scheme_or_space_inside_is_joined() {
        let joined = |value: &str| joined(value.as_bytes()).map(|text| String::from_utf8(text).unwrap());
        for plain in ["", "a.b.c", "Bearer a.b.c", "bearer \t a.b.c", "Bearera.b.c"] {
            assert_eq!(joined(plain), None, "{plain}");
        }
        for split in ["a.Bearer b.c", "Bearer a.bearerb.c", "a. b.c", "Bearer BEARER a.b.c", "Bearer a.b .c"]
        {
            assert_eq!(joined(split).as_deref(), Some("a.b.c"), "{split}");
        }
    }

    #[test]
    fn signature_of_a_length_ignores_other_bytes() {
        let signature = |rest: &str| TokenText { signed: b"a.b.", rest: rest.as_bytes() }.signature(4);
        for rest in ["AbC-_w", "AbC-_x", "AbC+/w==", "AbC-_wMore", "A!b C-_w", "AbC-_w.d"] {
            assert_eq!(signature(rest).as_deref(), Some("AbC-_w"), "{rest}");
        }
        assert_eq!(signature("AbC-_"), None);
        assert_eq!(signature("Ab.C-_w"), None);
    }

    #[test]
    fn length_of_a_number_does_not_count_leading_zeros() {
        for (text, length) in
            [("", 0), ("AA", 0), ("AQAB", 3), ("AAEAAQ", 3), ("_w", 1), ("AP8", 1), ("AP__", 2)]
        {
            assert_eq!(number_length(text), length, "{text}");
        }
    }
}
