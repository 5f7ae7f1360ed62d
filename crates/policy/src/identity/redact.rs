//! Redacts the secrets of a request in its path and host.
//!
//! The client chooses both the secrets and the path, so the work is bounded: each search is linear, and at most
//! [`MAX_SECRETS`] secrets are searched for. If a request has more, the whole text is redacted.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use memchr::memmem;
use smallvec::SmallVec;

use super::{ClaimSource, Identities, token};

/// Replaces a secret.
const HIDDEN: &str = "…";
/// Replaces a text that is redacted completely.
const ALL_HIDDEN: &str = "/…";
/// Shorter secrets are not searched for, as they would match everywhere.
const SHORTEST: usize = 4;
/// The maximum number of secrets that are searched for in one request.
const MAX_SECRETS: usize = 8;

type SecretList<'h> = SmallVec<[&'h [u8]; MAX_SECRETS]>;

impl Identities {
    /// Redacts the request's API key, cookies and tokens in a path or host, percent-encoded or not.
    pub fn redact<'t>(&self, headers: &HeaderMap, text: &'t str) -> Cow<'t, str> {
        match self.secrets(headers) {
            Some(secrets) => redact(text, &secrets, memmem::find),
            None => Cow::Borrowed(ALL_HIDDEN),
        }
    }

    /// The secrets of the request; `None` if there are too many.
    fn secrets<'h>(&self, headers: &'h HeaderMap) -> Option<SecretList<'h>> {
        let bytes = http::HeaderValue::as_bytes;
        let keys = self.spec.api_key.iter().flat_map(|name| headers.get_all(name)).map(bytes);
        let cookies = self.spec.cookie.iter().flat_map(|cookie| cookie.values(headers));
        let tokens = self.token_sources().map(ClaimSource::header).filter(|name| **name != AUTHORIZATION);
        let tokens = tokens.chain([&AUTHORIZATION]).flat_map(|name| headers.get_all(name)).map(bytes);
        let tokens = tokens.flat_map(|value| {
            let is_end = |byte: &u8| token::is_space(*byte) || matches!(byte, b',' | b';' | b'=' | b'"');
            let begin = value.iter().position(|byte| token::is_space(*byte)).map_or(0, |space| space + 1);
            // The whole rest, and its words: a token may be surrounded by white space and what lenient services ignore. The
            // scheme is no secret.
            let words = value.split(is_end).skip(usize::from(begin > 0));
            let words = words.filter(|word| !word.eq_ignore_ascii_case(b"Bearer"));
            [&value[begin..]].into_iter().chain(words)
        });
        let mut secrets = SecretList::new();
        for secret in keys.chain(cookies).chain(tokens).map(<[u8]>::trim_ascii) {
            if secret.len() < SHORTEST || secrets.contains(&secret) {
                continue;
            }
            if secrets.len() == MAX_SECRETS {
                return None;
            }
            secrets.push(secret);
        }
        // A secret that is part of another one would leave the rest of it.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        Some(secrets)
    }
}

/// Replaces `secrets` in `text`. `find` returns the offset of its second argument in its first, in linear time.
fn redact<'t>(
    text: &'t str,
    secrets: &[&[u8]],
    mut find: impl FnMut(&[u8], &[u8]) -> Option<usize>,
) -> Cow<'t, str> {
    let mut shown = Cow::Borrowed(text);
    for secret in secrets {
        if let Some(rest) = replace_secret(&shown, secret, &mut find) {
            shown = Cow::Owned(rest);
        }
        // An encoded secret cannot be located exactly, so the whole text is redacted.
        if find(&percent_decoded(&shown), secret).is_some() {
            return Cow::Borrowed(ALL_HIDDEN);
        }
    }
    shown
}

/// Replaces every occurrence of `secret`; `None` if there is none.
fn replace_secret(
    text: &str,
    secret: &[u8],
    mut find: impl FnMut(&[u8], &[u8]) -> Option<usize>,
) -> Option<String> {
    let secret = str::from_utf8(secret).ok()?;
    let mut at = find(text.as_bytes(), secret.as_bytes())?;
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    loop {
        shown.push_str(rest.get(..at)?);
        shown.push_str(HIDDEN);
        rest = rest.get(at + secret.len()..)?;
        let Some(next) = find(rest.as_bytes(), secret.as_bytes()) else { break };
        at = next;
    }
    shown.push_str(rest);
    Some(shown)
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let digit = |at: usize| others.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        if let (b'%', Some(high), Some(low)) = (first, digit(0), digit(1)) {
            bytes.extend(u8::try_from(high << 4 | low));
            rest = &others[2..];
        } else {
            bytes.push(*first);
            rest = others;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HeaderName;

    use super::*;
    use crate::identity::IdentitySpec;

    #[test]
    fn api_key_and_authorization_are_redacted_in_paths() {
        let identities = Identities::new(IdentitySpec::default()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static("sk_live+51/H"));
        headers.insert("authorization", HeaderValue::from_static("Bearer eyJhbGciOi"));
        let redact = |text: &'static str| identities.redact(&headers, text).into_owned();
        assert_eq!(redact("/things/7"), "/things/7");
        assert_eq!(redact("/k/sk_live+51/H/x"), "/k/…/x");
        assert_eq!(redact("/k/sk_live%2B51%2fH/x"), "/…");
        assert_eq!(redact("/%73%6b_live+51/H"), "/…");
        assert_eq!(redact("/a/eyJhbGciOi"), "/a/…");
        assert_eq!(redact("/100%/%zz"), "/100%/%zz");
    }

    #[test]
    fn tokens_and_cookies_in_any_spelling_are_redacted_in_paths() {
        let verifier = std::sync::Arc::new(crate::identity::Verifier::hs256(b"secret").unwrap());
        let source = ClaimSource::new(HeaderName::from_static("x-token"), "sub", verifier);
        let identities = Identities::new(IdentitySpec {
            user: Some(crate::identity::IdentitySource::Claim(source)),
            cookie: Some(crate::identity::CookieName::new("session").unwrap()),
            ..IdentitySpec::default()
        })
        .unwrap();
        let lines: [(&str, &[u8]); 11] = [
            ("x-token", b"s3cr3t.value"),
            ("x-token", b"Bearer s3cr3t.value"),
            ("authorization", b"Bearer\ts3cr3t.value"),
            ("authorization", b"Bearer\xa0s3cr3t.value"),
            ("authorization", b"Bearer  s3cr3t.value"),
            ("authorization", b"X y, Bearer s3cr3t.value"),
            ("authorization", b"Bearer s3cr3t.value=AAAA"),
            ("authorization", b"Token token=\"s3cr3t.value\""),
            ("cookie", b"session=s3cr3t.value; session=other"),
            ("cookie", b"session=other; session=s3cr3t.value"),
            ("cookie", b"session=\"s3cr3t.value\""),
        ];
        for (name, value) in lines {
            let line = (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
            let shown = identities.redact(&[line].into_iter().collect(), "/k/s3cr3t.value/x").into_owned();
            assert_eq!(shown, "/k/…/x", "{name}: {}", value.escape_ascii());
        }
    }

    fn headers(values: &[&'static [u8]]) -> HeaderMap {
        let value = |value: &&'static [u8]| {
            (HeaderName::from_static("x-api-key"), HeaderValue::from_bytes(value).unwrap())
        };
        values.iter().map(value).collect()
    }

    fn redacted(headers: &HeaderMap, text: &str) -> String {
        Identities::new(IdentitySpec::default()).unwrap().redact(headers, text).into_owned()
    }

    #[test]
    fn secret_inside_another_secret_does_not_keep_it_from_being_redacted() {
        assert_eq!(redacted(&headers(&[b"live", b"sk_live_51H"]), "/k/sk_live_51H/live"), "/k/…/…");
        let value = HeaderValue::from_static("Token token=\"my-token-51H\"");
        let headers = [(AUTHORIZATION, value)].into_iter().collect();
        assert_eq!(redacted(&headers, "/k/my-token-51H"), "/k/…");
    }

    #[test]
    fn secret_plain_and_encoded_redacts_the_whole_text() {
        let headers = headers(&[b"sk_live_51H"]);
        assert_eq!(redacted(&headers, "/k/sk_live_51H/%73k_live_51H"), "/…");
    }

    #[test]
    fn secret_that_is_not_utf8_redacts_the_whole_text() {
        assert_eq!(redacted(&headers(&[b"sk_\xff_live"]), "/k/sk_%FF_live"), "/…");
    }

    #[test]
    fn too_many_secrets_redact_the_whole_text() {
        let many: Vec<&'static [u8]> =
            (0..=MAX_SECRETS).map(|n| &*format!("sk_live_{n}").into_bytes().leak()).collect();
        assert_eq!(redacted(&headers(&many[1..]), "/things/7"), "/things/7");
        assert_eq!(redacted(&headers(&many), "/things/7"), "/…");
        let short = vec![b"abc".as_slice(); 50];
        assert_eq!(redacted(&headers(&short), "/abc"), "/abc", "too short to be searched for");
    }

    #[test]
    fn redaction_of_adversarial_text_is_linear() {
        // The worst cases: near matches at every byte, many matches, and encoded text.
        let nearly = [vec![b'a'; 20_000], b"b".to_vec()].concat();
        let texts = ["a".repeat(40_000), "%61".repeat(13_000), format!("{}x", "aaaa".repeat(9_000))];
        let secrets = [nearly.as_slice(), b"aaaa", b"%61%61", b"aaab", &nearly[..10_000]];
        for text in &texts {
            let mut searched = 0;
            let count = |text: &[u8], secret: &[u8]| {
                let found = memmem::find(text, secret);
                searched += found.map_or(text.len(), |at| at + secret.len());
                found
            };
            let shown = redact(text, &secrets, count);
            assert!(!shown.contains("aaaa") && !shown.contains("%61%61"), "{} bytes are shown", shown.len());
            assert!(searched <= 2 * secrets.len() * text.len(), "{searched} bytes of {}", text.len());
        }
    }
}
