//! Which client a request is counted for.

use std::net::{IpAddr, SocketAddr};

use http::Request;
use http::header::HeaderName;

/// The bytes that identify a client.
#[derive(Clone, Debug)]
pub enum ClientKey<'r> {
    /// A part of the request.
    Bytes(&'r [u8]),
    /// An address; the first 64 bits of an IPv6 address.
    Address(IpAddr),
    /// Computed from the request.
    Owned(Vec<u8>),
}

impl ClientKey<'_> {
    /// The bytes; `prefix` is where those of an address are written.
    #[inline]
    pub(super) fn bytes<'k>(&'k self, prefix: &'k mut [u8; 8]) -> &'k [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            // All IPv4 clients of a listener for both versions have mapped addresses, which have one prefix.
            Self::Address(address) => match address.to_canonical() {
                IpAddr::V4(address) => {
                    let (octets, _) = prefix.split_at_mut(4);
                    octets.copy_from_slice(&address.octets());
                    octets
                }
                IpAddr::V6(address) => {
                    // A client has at least a /64 and may use any address of it.
                    let [first, second, third, fourth, fifth, sixth, seventh, eighth, ..] = address.octets();
                    *prefix = [first, second, third, fourth, fifth, sixth, seventh, eighth];
                    prefix
                }
            },
        }
    }
}

/// Finds the client of a request.
pub trait FindClient<R> {
    /// The client. All requests for which this is `None` share one counter: omitting an identification never avoids a limit.
    fn client<'r>(&self, request: &'r R) -> Option<ClientKey<'r>>;
}

/// Counts clients by a header, such as an API key, without the whitespace around it. The value must be verified by a layer further
/// out, or clients can avoid the limit with invented values. Requests that repeat the header share one counter with those without
/// it: that layer may have verified another value.
#[derive(Clone, Debug)]
pub struct ByHeader(HeaderName);

impl ByHeader {
    /// Counts clients by the header `name`.
    pub fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl<B> FindClient<Request<B>> for ByHeader {
    #[expect(clippy::inline_always, reason = "a result that is not inlined goes through memory")]
    #[inline(always)]
    fn client<'r>(&self, request: &'r Request<B>) -> Option<ClientKey<'r>> {
        let mut values = request.headers().get_all(&self.0).iter();
        let value = values.next()?;
        // HTTP/2 keeps whitespace around values.
        values.next().is_none().then(|| ClientKey::Bytes(value.as_bytes().trim_ascii()))
    }
}

/// Counts clients by the address that a closure finds; IPv6 addresses by their first 64 bits.
#[derive(Clone, Debug)]
pub struct ByAddress<F>(F);

impl<F> ByAddress<F> {
    /// `find` is `Fn(&Request) -> Option<IpAddr>`.
    pub fn new<R>(find: F) -> Self
    where
        F: Fn(&R) -> Option<IpAddr>,
    {
        Self(find)
    }
}

impl<B> ByAddress<fn(&Request<B>) -> Option<IpAddr>> {
    /// Counts by the [`SocketAddr`] in the extensions of the request.
    pub fn of_extension() -> Self {
        Self(|request| request.extensions().get::<SocketAddr>().map(SocketAddr::ip))
    }
}

impl<R, F: Fn(&R) -> Option<IpAddr>> FindClient<R> for ByAddress<F> {
    #[inline]
    fn client<'r>(&self, request: &'r R) -> Option<ClientKey<'r>> {
        (self.0)(request).map(ClientKey::Address)
    }
}

/// Counts all requests together.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCounter;

impl<R> FindClient<R> for OneCounter {
    #[inline]
    fn client<'r>(&self, _request: &'r R) -> Option<ClientKey<'r>> {
        None
    }
}

/// Closures find the client too: `fn(&Request) -> Option<ClientKey>`.
impl<R, F> FindClient<R> for F
where
    F: for<'r> Fn(&'r R) -> Option<ClientKey<'r>>,
{
    #[inline]
    fn client<'r>(&self, request: &'r R) -> Option<ClientKey<'r>> {
        self(request)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn bytes(key: &ClientKey<'_>) -> Vec<u8> {
        key.bytes(&mut [0; 8]).to_vec()
    }

    #[test]
    fn client_addresses_of_one_ipv6_network_are_one_client() {
        let key = |text: &str| bytes(&ClientKey::Address(text.parse().unwrap()));
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
        assert_eq!(key("192.0.2.1"), [192, 0, 2, 1]);
        assert_eq!(key("::ffff:192.0.2.1"), [192, 0, 2, 1], "IPv4 clients are not one IPv6 network");
    }

    #[test]
    fn client_of_a_header_has_one_key_in_any_spelling_and_none_if_it_is_repeated() {
        let key = |values: &[&'static str]| {
            let mut request = Request::new(());
            for value in values {
                request.headers_mut().append("x-api-key", HeaderValue::from_static(value));
            }
            let client = ByHeader::new(HeaderName::from_static("x-api-key"));
            client.client(&request).map(|key| bytes(&key))
        };
        assert_eq!(key(&["a"]), Some(b"a".to_vec()));
        assert_eq!(key(&[" a\t"]), key(&["a"]));
        assert_ne!(key(&["b"]), key(&["a"]));
        assert_eq!((key(&["invented", "a"]), key(&["a", "a"]), key(&[])), (None, None, None));
    }

    #[test]
    fn client_address_of_an_extension_is_found_and_mapped_addresses_are_ipv4() {
        let mut request = Request::new(());
        let find = ByAddress::of_extension();
        assert!(find.client(&request).is_none());
        request.extensions_mut().insert(SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0201], 80)));
        assert_eq!(bytes(&find.client(&request).unwrap()), [192, 0, 2, 1]);
    }
}
