//! Secrets of a request that stand where they do not belong.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::Identities;

/// What stands for a secret.
const HIDDEN: &str = "…";
/// Shorter secrets are found in everything.
const SHORTEST: usize = 4;

impl Identities {
    /// A path or a host as it may be shown: what the request also sent as its API key, its cookie or its authorization
    /// is hidden in it, encoded or not.
    pub fn hide<'t>(&self, headers: &HeaderMap, text: &'t str) -> Cow<'t, str> {
        let mut shown = Cow::Borrowed(text);
        let keys =
            self.spec.api_key.iter().flat_map(|name| headers.get_all(name)).map(http::HeaderValue::as_bytes);
        let cookie = self.spec.cookie.as_ref().and_then(|cookie| cookie.find(headers));
        let authorizations = headers.get_all(AUTHORIZATION).iter().map(|value| {
            let value = value.as_bytes();
            value.iter().position(|byte| *byte == b' ').map_or(value, |space| &value[space + 1..])
        });
        for secret in keys.chain(cookie).chain(authorizations) {
            let Ok(secret) = str::from_utf8(secret.trim_ascii()) else { continue };
            if secret.len() < SHORTEST {
                continue;
            }
            if shown.contains(secret) {
                shown = Cow::Owned(shown.replace(secret, HIDDEN));
            } else if decoded(&shown).windows(secret.len()).any(|window| window == secret.as_bytes()) {
                shown = Cow::Owned(format!("/{HIDDEN}"));
            }
        }
        shown
    }
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

    use super::*;
    use crate::identity::IdentitySpec;

    #[test]
    fn a_key_is_not_shown_wherever_it_stands() {
        let identities = Identities::new(IdentitySpec::default()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static("sk_live+51/H"));
        headers.insert("authorization", HeaderValue::from_static("Bearer eyJhbGciOi"));
        let hide = |text: &'static str| identities.hide(&headers, text).into_owned();
        assert_eq!(hide("/things/7"), "/things/7");
        assert_eq!(hide("/k/sk_live+51/H/x"), "/k/…/x");
        assert_eq!(hide("/k/sk_live%2B51%2fH/x"), "/…");
        assert_eq!(hide("/%73%6b_live+51/H"), "/…");
        assert_eq!(hide("/a/eyJhbGciOi"), "/a/…");
        assert_eq!(hide("/100%/%zz"), "/100%/%zz");
    }
}
