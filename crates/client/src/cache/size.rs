//! What a stored response occupies.

use http::HeaderMap;
use http::header::CACHE_CONTROL;

use super::CacheableGet;

/// What an entry occupies beside its texts: its policy, and its places in two tables.
const ENTRY_BYTES: usize = 1_536;
/// What a header occupies beside its name and value, in the tables of the entry and of its policy.
const HEADER_BYTES: usize = 256;
/// What a directive of `Cache-Control` occupies in the policy.
const DIRECTIVE_BYTES: usize = 128;

/// What an entry occupies, except its body. Its policy holds the headers of the request and of the response.
pub(super) fn of_entry(get: &CacheableGet, response: &HeaderMap) -> usize {
    let (key, request) = (&get.key, get.request.headers());
    // The URL is held by the key and by the policy.
    ENTRY_BYTES + 2 * key.url.len() + key.partition.len() + key.user.len() + of(request) + of(response)
}

fn of(headers: &HeaderMap) -> usize {
    let texts = headers.iter().map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len());
    let directives = headers.get_all(CACHE_CONTROL).iter().map(|value| {
        let count = value.as_bytes().split(|byte| *byte == b',').count();
        count * DIRECTIVE_BYTES + value.len()
    });
    texts.chain(directives).sum()
}
