//! Which client a request is counted for.

use std::net::IpAddr;

use http::header::HeaderName;
use http::{HeaderValue, Request};

use crate::address::{ConnectInfoAddress, FindAddress, MissingConnectInfo};

/// The bytes that identify a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
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

impl<'r> From<&'r [u8]> for ClientKey<'r> {
    fn from(bytes: &'r [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'r> From<&'r str> for ClientKey<'r> {
    fn from(text: &'r str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'r> From<&'r HeaderValue> for ClientKey<'r> {
    /// The value without the whitespace around it, which HTTP/2 keeps.
    fn from(value: &'r HeaderValue) -> Self {
        Self::Bytes(value.as_bytes().trim_ascii())
    }
}

impl From<String> for ClientKey<'_> {
    fn from(text: String) -> Self {
        Self::Owned(text.into_bytes())
    }
}

impl From<IpAddr> for ClientKey<'_> {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

/// Finds the client of a request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the client of a `{R}`",
    note = "wrap a closure that borrows from the request: `ByKey::new(|request: &Request<_>| …)`"
)]
pub trait FindClient<R> {
    /// The client. All requests for which this is `None` share one counter: omitting an identification never avoids a limit. An
    /// error fails the call: the server is set up wrongly.
    fn client<'r>(&self, request: &'r R) -> Result<Option<ClientKey<'r>>, MissingConnectInfo>;
}

/// Counts clients by a header, such as an API key, without the whitespace around it. The value must be verified by a layer further
/// out, or clients can avoid the limit with invented values. Requests that repeat the header share one counter with those without
/// it: that layer may have verified another value.
#[derive(Clone, Debug)]
pub struct ByHeader(HeaderName);

impl ByHeader {
    /// Counts clients by the header `name`: a [`HeaderName`], or text such as `"X-API-Key"`, which may be invalid.
    pub fn new<N: TryInto<HeaderName>>(name: N) -> Result<Self, N::Error> {
        name.try_into().map(Self)
    }
}

impl<B> FindClient<Request<B>> for ByHeader {
    #[expect(clippy::inline_always, reason = "a result that is not inlined goes through memory")]
    #[inline(always)]
    fn client<'r>(&self, request: &'r Request<B>) -> Result<Option<ClientKey<'r>>, MissingConnectInfo> {
        let mut values = request.headers().get_all(&self.0).iter();
        let Some(value) = values.next() else { return Ok(None) };
        Ok(values.next().is_none().then(|| value.into()))
    }
}

/// Counts clients by address; IPv6 addresses by their first 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct ByAddress<F>(F);

impl<F> ByAddress<F> {
    /// `find` is `Fn(&Request) -> Option<IpAddr>`: behind a proxy, a header that the proxy sets and no client can set.
    pub fn new<R>(find: F) -> Self
    where
        F: Fn(&R) -> Option<IpAddr>,
    {
        Self(find)
    }
}

impl ByAddress<ConnectInfoAddress> {
    /// Counts by the [address of the connection](ConnectInfoAddress). A request without one fails with [`MissingConnectInfo`].
    #[doc(alias = "of_extension")]
    pub fn connect_info() -> Self {
        Self(ConnectInfoAddress)
    }
}

impl<R, F: FindAddress<R>> FindClient<R> for ByAddress<F> {
    #[inline]
    fn client<'r>(&self, request: &'r R) -> Result<Option<ClientKey<'r>>, MissingConnectInfo> {
        Ok(self.0.address(request)?.map(ClientKey::Address))
    }
}

/// Counts clients by the key that a closure finds.
///
/// ```
/// use http::Request;
/// use tidegate_tower::rate_limit::{ByKey, ClientKey};
///
/// // Verified by a layer further out.
/// let by_tenant = ByKey::new(|request: &Request<String>| request.headers().get("x-tenant").map(ClientKey::from));
/// # let _ = by_tenant;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ByKey<F>(F);

impl<F> ByKey<F> {
    /// `find` is `Fn(&Request) -> Option<ClientKey>`; the key may borrow from the request.
    pub fn new<R>(find: F) -> Self
    where
        F: for<'r> Fn(&'r R) -> Option<ClientKey<'r>>,
    {
        Self(find)
    }
}

impl<R, F> FindClient<R> for ByKey<F>
where
    F: for<'r> Fn(&'r R) -> Option<ClientKey<'r>>,
{
    #[inline]
    fn client<'r>(&self, request: &'r R) -> Result<Option<ClientKey<'r>>, MissingConnectInfo> {
        Ok((self.0)(request))
    }
}

/// Counts all requests together.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCounter;

impl<R> FindClient<R> for OneCounter {
    #[inline]
    fn client<'r>(&self, _request: &'r R) -> Result<Option<ClientKey<'r>>, MissingConnectInfo> {
        Ok(None)
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
            let client = ByHeader::new("X-API-Key").unwrap();
            client.client(&request).unwrap().map(|key| bytes(&key))
        };
        assert_eq!(key(&["a"]), Some(b"a".to_vec()));
        assert_eq!(key(&[" a\t"]), key(&["a"]));
        assert_ne!(key(&["b"]), key(&["a"]));
        assert_eq!((key(&["invented", "a"]), key(&["a", "a"]), key(&[])), (None, None, None));
    }
}
