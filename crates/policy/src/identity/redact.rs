//! Secrets of a request that stand where they do not belong.
//!
//! Whoever sends a request chooses both its secrets and its path. So the work is bounded: a search takes time in
//! proportion to what it searches, and no more than [`MOST_SECRETS`] are searched for. A request with more of them has
//! all of its text hidden.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use memchr::memmem;
use smallvec::SmallVec;

use super::Identities;

/// What stands for a secret.
const HIDDEN: &str = "…";
/// What stands for a text of which not even the rest can be shown.
const ALL_HIDDEN: &str = "/…";
/// Shorter secrets are found in everything.
const SHORTEST: usize = 4;
/// Nobody needs more keys, cookies and credentials in one request.
const MOST_SECRETS: usize = 8;

type Secrets<'h> = SmallVec<[&'h [u8]; MOST_SECRETS]>;

impl Identities {
    /// A path or a host as it may be shown: what the request also sent as its API key, its cookie or its authorization
    /// is hidden in it, encoded or not.
    pub fn redact<'t>(&self, headers: &HeaderMap, text: &'t str) -> Cow<'t, str> {
        match self.secrets(headers) {
            Some(secrets) => redact(text, &secrets, memmem::find),
            None => Cow::Borrowed(ALL_HIDDEN),
        }
    }

    /// What must not be shown; `None` if there is too much of it.
    fn secrets<'h>(&self, headers: &'h HeaderMap) -> Option<Secrets<'h>> {
        let keys =
            self.spec.api_key.iter().flat_map(|name| headers.get_all(name)).map(http::HeaderValue::as_bytes);
        let cookie = self.spec.cookie.as_ref().and_then(|cookie| cookie.find(headers));
        let authorizations = headers.get_all(AUTHORIZATION).iter().map(|value| {
            let value = value.as_bytes();
            value.iter().position(|byte| *byte == b' ').map_or(value, |space| &value[space + 1..])
        });
        let secrets = keys.chain(cookie).chain(authorizations).map(<[u8]>::trim_ascii);
        let secrets = secrets.filter(|secret| secret.len() >= SHORTEST);
        let secrets: Secrets<'h> = secrets.take(MOST_SECRETS + 1).collect();
        (secrets.len() <= MOST_SECRETS).then_some(secrets)
    }
}

/// The text without `secrets`. `find` says where the second begins in the first, in time proportional to both.
fn redact<'t>(
    text: &'t str,
    secrets: &[&[u8]],
    mut find: impl FnMut(&[u8], &[u8]) -> Option<usize>,
) -> Cow<'t, str> {
    let mut shown = Cow::Borrowed(text);
    for secret in secrets {
        if let Some(rest) = replaced(&shown, secret, &mut find) {
            shown = Cow::Owned(rest);
        }
        // What is encoded in many ways is not told apart from the rest.
        if find(&decoded(&shown), secret).is_some() {
            return Cow::Borrowed(ALL_HIDDEN);
        }
    }
    shown
}

/// The text with every `secret` replaced; `None` if there is none.
fn replaced(
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

fn decoded(text: &str) -> Vec<u8> {
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
    fn a_key_is_not_shown_wherever_it_stands() {
        let identities = Identities::new(IdentitySpec::default()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static("sk_live+51/H"));
        headers.insert("authorization", HeaderValue::from_static("Bearer eyJhbGciOi"));
        let hide = |text: &'static str| identities.redact(&headers, text).into_owned();
        assert_eq!(hide("/things/7"), "/things/7");
        assert_eq!(hide("/k/sk_live+51/H/x"), "/k/…/x");
        assert_eq!(hide("/k/sk_live%2B51%2fH/x"), "/…");
        assert_eq!(hide("/%73%6b_live+51/H"), "/…");
        assert_eq!(hide("/a/eyJhbGciOi"), "/a/…");
        assert_eq!(hide("/100%/%zz"), "/100%/%zz");
    }

    fn headers(values: &[&'static [u8]]) -> HeaderMap {
        let value = |value: &&'static [u8]| {
            (HeaderName::from_static("x-api-key"), HeaderValue::from_bytes(value).unwrap())
        };
        values.iter().map(value).collect()
    }

    fn hidden(headers: &HeaderMap, text: &str) -> String {
        Identities::new(IdentitySpec::default()).unwrap().redact(headers, text).into_owned()
    }

    #[test]
    fn secret_both_plain_and_encoded_is_hidden_in_both() {
        let headers = headers(&[b"sk_live_51H"]);
        assert_eq!(hidden(&headers, "/k/sk_live_51H/%73k_live_51H"), "/…");
    }

    #[test]
    fn secret_that_is_not_utf8_is_hidden() {
        assert_eq!(hidden(&headers(&[b"sk_\xff_live"]), "/k/sk_%FF_live"), "/…");
    }

    #[test]
    fn more_secrets_than_are_searched_for_hide_the_whole_text() {
        let few = vec![b"sk_live_51H".as_slice(); MOST_SECRETS];
        assert_eq!(hidden(&headers(&few), "/things/7"), "/things/7");
        let many = vec![b"sk_live_51H".as_slice(); MOST_SECRETS + 1];
        assert_eq!(hidden(&headers(&many), "/things/7"), "/…");
        let short = vec![b"abc".as_slice(); 50];
        assert_eq!(hidden(&headers(&short), "/abc"), "/abc", "too short to be searched for");
    }

    #[test]
    fn redaction_of_adversarial_text_searches_no_more_than_a_multiple_of_it() {
        // Nearly found at every byte, found again and again, and encoded: the most that is searched.
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
