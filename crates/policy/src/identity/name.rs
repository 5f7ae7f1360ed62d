//! The names of clients for operators: `ip:203.0.113.7`, `user:bob`, `api_key:sk_l…#b59c1698`.
//!
//! The format is the same in metrics, logs, the admin API and the command line. A displayed name can be parsed again and
//! names the same client. Secrets and very long names are displayed as a prefix and a hash. Control characters and other
//! ambiguous characters are percent-encoded. The identities of a combined key are joined by `+`:
//! `ip:203.0.113.7+user:bob`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use strsim::damerau_levenshtein;
use tidegate_core::is_visible;

use super::cookie::canonical;
use super::{ClientKind, Identities, append, parts};

/// The number of characters of a secret that are displayed, if it is at least three times as long.
const SHOWN: usize = 4;
/// The number of characters of a long name that are displayed.
const SHOWN_OF_LONG: usize = 60;
/// A longer name is shortened.
const LONG: usize = 120;
/// The name of all clients together.
const EVERYBODY: &str = "everybody";

/// A client's name. Displaying it never reveals a secret.
///
/// ```
/// use tidegate_policy::ClientName;
///
/// let typed: ClientName = "api_key:sk_live_51H_very_secret".parse()?;
/// assert_eq!(typed.to_string(), "api_key:sk_l…#b59c1698");
/// # Ok::<(), tidegate_policy::ClientNameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientName {
    /// Empty for all clients together.
    parts: Vec<NamePart>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct NamePart {
    kind: ClientKind,
    value: IdentityValue,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum IdentityValue {
    /// The bytes in the keys of counters.
    Whole(Vec<u8>),
    /// The first characters and a hash of the whole value.
    Hashed { start: String, hash: [u8; 4] },
}

/// The key to look up an identity by its displayed name.
pub(crate) enum LookupKey<'a> {
    Whole(&'a [u8]),
    Hash([u8; 4]),
}

impl LookupKey<'_> {
    /// The lookup key of the identity with this kind and these bytes.
    pub(crate) fn of(kind: ClientKind, bytes: &[u8]) -> LookupKey<'_> {
        if IdentityValue::is_hashed(kind, bytes) {
            LookupKey::Hash(hash(bytes))
        } else {
            LookupKey::Whole(bytes)
        }
    }
}

/// Why a client's name is invalid. The message does not repeat the name, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientNameError {
    /// It does not begin with a kind.
    #[error("missing client kind; write for example ip:203.0.113.7, user:bob or api_key:KEY")]
    NoKind,
    /// It begins with an unknown kind.
    #[error("unknown client kind; did you mean `{}:…`?", .nearest.name())]
    UnknownKind {
        /// The most similar kind.
        nearest: ClientKind,
    },
    /// It begins with a word that is similar to no kind.
    #[error("unknown client kind; the kinds are api_key, user, tenant, ip, fingerprint and cookie")]
    OtherKind,
    /// The value after the kind is missing.
    #[error("missing value after `{}:`", .kind.name())]
    Empty {
        /// The kind.
        kind: ClientKind,
    },
    /// The value is not an address.
    #[error("invalid address after `ip:`; write for example 203.0.113.7 or 2001:db8::1")]
    NotAnAddress,
    /// The value is not a fingerprint.
    #[error("invalid fingerprint after `fingerprint:`; expected 32 hexadecimal digits")]
    NotAFingerprint,
    /// Invalid percent-encoding.
    #[error("`%` must be followed by two hexadecimal digits; write a literal percent sign as %25")]
    Encoding,
}

impl ClientKind {
    /// The kind with this name; otherwise the error names the most similar one, or all.
    pub fn parse(name: &str) -> Result<Self, ClientNameError> {
        Self::named(name).ok_or_else(|| match unknown_kind(name) {
            ClientNameError::NoKind => ClientNameError::OtherKind,
            similar => similar,
        })
    }
}

impl ClientName {
    /// The name of the client in a counter key, such as [`MatchedRequest::client`](crate::MatchedRequest::client).
    pub fn from_key(key: &[u8]) -> Self {
        Self {
            parts: parts(key)
                .map(|(kind, bytes)| NamePart { kind, value: IdentityValue::shown(kind, bytes) })
                .collect(),
        }
    }

    /// The client with these identities. Unlike a parsed name, a value is taken as it is: neither `+` nor `%` has a meaning in
    /// it, so a value that a client has chosen cannot name another client.
    pub fn of_identities<'v>(
        identities: impl IntoIterator<Item = (ClientKind, &'v str)>,
    ) -> Result<Self, ClientNameError> {
        let part = |(kind, value): (ClientKind, &'v str)| {
            let value = match kind {
                ClientKind::Ip | ClientKind::Fingerprint => IdentityValue::parse(kind, value)?,
                _ if value.is_empty() => return Err(ClientNameError::Empty { kind }),
                ClientKind::Cookie => IdentityValue::Whole(canonical(value.as_bytes()).into_owned()),
                _ => IdentityValue::Whole(value.as_bytes().to_vec()),
            };
            Ok(NamePart { kind, value })
        };
        Ok(Self { parts: identities.into_iter().map(part).collect::<Result<_, _>>()? })
    }

    /// The client `text` with one identity, for example `user:bob`. Everything after the kind is taken as it is.
    pub fn of_identity(text: &str) -> Result<Self, ClientNameError> {
        let (kind, value) = text.split_once(':').ok_or(ClientNameError::NoKind)?;
        Self::of_identities([(ClientKind::parse(kind)?, value)])
    }

    /// Whether `key` is a key of this client. A name with a hash matches every key with that hash.
    pub fn names(&self, key: &[u8]) -> bool {
        let mut named = self.parts.iter();
        let all = parts(key).all(|(kind, bytes)| {
            named.next().is_some_and(|part| part.kind == kind && part.value.is_of(kind, bytes))
        });
        all && named.next().is_none()
    }

    /// Whether the counter key `key` is of this client, alone or together with other identities.
    pub fn is_part_of(&self, key: &[u8]) -> bool {
        let has = |part: &NamePart| {
            parts(key).any(|(kind, bytes)| part.kind == kind && part.value.is_of(kind, bytes))
        };
        !self.parts.is_empty() && self.parts.iter().all(has)
    }

    /// The counter key of this client; `None` if the name has only a hash.
    pub fn key(&self, identities: &Identities) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        for NamePart { kind, value } in &self.parts {
            let IdentityValue::Whole(bytes) = value else { return None };
            match address(bytes).filter(|_| *kind == ClientKind::Ip) {
                Some(address) => {
                    append(&mut key, *kind, Some(&octets(identities.spec.addresses.counter_address(address))))
                }
                None => append(&mut key, *kind, Some(bytes)),
            };
        }
        Some(key)
    }

    /// The name as displayed: secrets and very long values are replaced by a prefix and a hash.
    pub(crate) fn shown(&self) -> Self {
        let shown = |NamePart { kind, value }: &NamePart| {
            let value = match value {
                IdentityValue::Whole(bytes) => IdentityValue::shown(*kind, bytes),
                hashed @ IdentityValue::Hashed { .. } => hashed.clone(),
            };
            NamePart { kind: *kind, value }
        };
        Self { parts: self.parts.iter().map(shown).collect() }
    }

    /// The lookup key of a client with one identity. It narrows the candidates for [`names_one`](Self::names_one).
    pub(crate) fn lookup_key(&self) -> Option<(ClientKind, LookupKey<'_>)> {
        let [NamePart { kind, value }] = self.parts.as_slice() else { return None };
        Some(match value {
            IdentityValue::Whole(bytes) => (*kind, LookupKey::Whole(bytes)),
            IdentityValue::Hashed { hash, .. } => (*kind, LookupKey::Hash(*hash)),
        })
    }

    /// Whether the name is this single identity.
    pub(crate) fn names_one(&self, kind: ClientKind, bytes: &[u8]) -> bool {
        matches!(self.parts.as_slice(), [part] if part.kind == kind && part.value.is_of(kind, bytes))
    }

    /// The address, if it is the only identity.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self.parts.as_slice() {
            [NamePart { kind: ClientKind::Ip, value: IdentityValue::Whole(bytes) }] => address(bytes),
            _ => None,
        }
    }

    /// The addresses among its identities.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.parts.iter().filter_map(|part| match part {
            NamePart { kind: ClientKind::Ip, value: IdentityValue::Whole(bytes) } => address(bytes),
            _ => None,
        })
    }

    /// The kind, if there is only one identity.
    pub fn kind(&self) -> Option<ClientKind> {
        match self.parts.as_slice() {
            [part] => Some(part.kind),
            _ => None,
        }
    }
}

impl IdentityValue {
    fn shown(kind: ClientKind, bytes: &[u8]) -> Self {
        match kind {
            _ if !Self::is_hashed(kind, bytes) => Self::Whole(bytes.to_vec()),
            ClientKind::ApiKey | ClientKind::Cookie => Self::hashed(bytes, SHOWN),
            _ => Self::hashed(bytes, SHOWN_OF_LONG),
        }
    }

    /// Whether it is a secret, or too long to be shown.
    fn is_hashed(kind: ClientKind, bytes: &[u8]) -> bool {
        match kind {
            ClientKind::ApiKey | ClientKind::Cookie => true,
            ClientKind::User | ClientKind::Tenant => bytes.len() > LONG,
            ClientKind::Ip | ClientKind::Fingerprint | ClientKind::Anonymous => false,
        }
    }

    fn hashed(bytes: &[u8], shown: usize) -> Self {
        let start = if bytes.len() >= 3 * SHOWN {
            bytes.get(..shown.min(bytes.len() / 2)).map(percent_encoded).unwrap_or_default()
        } else {
            String::new()
        };
        Self::Hashed { start, hash: hash(bytes) }
    }

    fn is_of(&self, kind: ClientKind, bytes: &[u8]) -> bool {
        match (self, Self::shown(kind, bytes)) {
            (Self::Whole(whole), _) => whole == bytes,
            (Self::Hashed { start, hash }, Self::Hashed { start: shown, hash: of_shown }) => {
                *hash == of_shown && shown.starts_with(start)
            }
            (Self::Hashed { .. }, Self::Whole(_)) => false,
        }
    }

    fn parse(kind: ClientKind, text: &str) -> Result<Self, ClientNameError> {
        if text.is_empty() && kind != ClientKind::Anonymous {
            return Err(ClientNameError::Empty { kind });
        }
        let bytes = match kind {
            ClientKind::Ip => {
                let address: IpAddr = text.parse().map_err(|_| ClientNameError::NotAnAddress)?;
                octets(address.to_canonical())
            }
            ClientKind::Fingerprint => {
                let bits = Some(text).filter(|text| text.len() == 32).and_then(from_hex);
                bits.ok_or(ClientNameError::NotAFingerprint)?
            }
            _ if let Some(hashed) = Self::parse_hashed(text) => return Ok(hashed),
            // Keys are not percent-decoded, as they are pasted unencoded.
            ClientKind::ApiKey => text.as_bytes().to_vec(),
            ClientKind::Cookie => canonical(text.as_bytes()).into_owned(),
            ClientKind::User | ClientKind::Tenant | ClientKind::Anonymous => percent_decoded(text)?,
        };
        Ok(Self::Whole(bytes))
    }

    /// `abcd…#1f2e3d4c`, or with three dots instead of the ellipsis.
    fn parse_hashed(text: &str) -> Option<Self> {
        let (start, hash) = text.rsplit_once('#')?;
        let start = start.strip_suffix('…').or_else(|| start.strip_suffix("..."))?;
        let hash = from_hex(hash)?.try_into().ok()?;
        Some(Self::Hashed { start: start.to_owned(), hash })
    }
}

impl fmt::Display for NamePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, value } = self;
        match (kind, value) {
            (ClientKind::Anonymous, _) => write!(f, "{kind}"),
            (_, IdentityValue::Hashed { start, hash }) => write!(f, "{kind}:{start}…#{}", hex(hash)),
            (ClientKind::ApiKey | ClientKind::Cookie, IdentityValue::Whole(secret)) => {
                Self { kind: *kind, value: IdentityValue::shown(*kind, secret) }.fmt(f)
            }
            (ClientKind::Ip, IdentityValue::Whole(bytes)) => match address(bytes) {
                Some(address) => write!(f, "{kind}:{address}"),
                None => write!(f, "{kind}:{}", hex(bytes)),
            },
            (ClientKind::Fingerprint, IdentityValue::Whole(bytes)) => write!(f, "{kind}:{}", hex(bytes)),
            (_, IdentityValue::Whole(bytes)) => {
                let text = percent_encoded(bytes);
                let name = text.trim_matches(' ');
                let begin = text.len() - text.trim_start_matches(' ').len();
                let end = text.len() - begin - name.len();
                // Otherwise `bob` and `bob ` look the same.
                write!(f, "{kind}:{}{name}{}", "%20".repeat(begin), "%20".repeat(end))
            }
        }
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str(EVERYBODY);
        }
        for (index, part) in self.parts.iter().enumerate() {
            if index > 0 {
                f.write_str("+")?;
            }
            part.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientName({self})")
    }
}

impl Serialize for ClientName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for ClientName {
    type Err = ClientNameError;

    fn from_str(text: &str) -> Result<Self, ClientNameError> {
        let mut parts = Vec::new();
        let mut rest = Some(text).filter(|text| *text != EVERYBODY);
        while let Some(text) = rest {
            let separator =
                text.match_indices('+').map(|(at, _)| at).find(|at| is_joined_identity(&text[at + 1..]));
            let (part, others) = match separator {
                Some(at) => (&text[..at], Some(&text[at + 1..])),
                None => (text, None),
            };
            let (kind, value) = part.split_once(':').unwrap_or((part, ""));
            let kind = match ClientKind::named(kind) {
                Some(kind) => kind,
                None if part == ClientKind::Anonymous.name() => ClientKind::Anonymous,
                None => return Err(unknown_kind(kind)),
            };
            parts.push(NamePart { kind, value: IdentityValue::parse(kind, value)? });
            rest = others;
        }
        Ok(Self { parts })
    }
}

/// Whether a `+` before this joins two identities; in `bob+tag@example.org` it does not.
fn is_joined_identity(rest: &str) -> bool {
    let word = rest.split([':', '+']).next().unwrap_or_default();
    word == ClientKind::Anonymous.name()
        || ClientKind::named(word).is_some() && rest.as_bytes().get(word.len()) == Some(&b':')
}

fn unknown_kind(kind: &str) -> ClientNameError {
    let nearest = ClientKind::NAMED.into_iter().min_by_key(|known| damerau_levenshtein(known.name(), kind));
    match nearest {
        Some(nearest) if damerau_levenshtein(nearest.name(), kind) <= 2 => {
            ClientNameError::UnknownKind { nearest }
        }
        _ => ClientNameError::NoKind,
    }
}

/// Percent-encodes everything but plain text.
fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let encode = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            text.push('%');
            text.push_str(&hex(&[*byte]).to_uppercase());
        }
    };
    for chunk in bytes.utf8_chunks() {
        for (at, c) in chunk.valid().char_indices() {
            let joins = c == '+' && is_joined_identity(&chunk.valid()[at + 1..]);
            if joins || !is_plain(c) {
                encode(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(c);
            }
        }
        encode(&mut text, chunk.invalid());
    }
    text
}

/// Whether a character is safe in logs and terminals and has no special meaning in names.
fn is_plain(c: char) -> bool {
    is_visible(c) && c != '%' && c != '…'
}

fn percent_decoded(text: &str) -> Result<Vec<u8>, ClientNameError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let byte = behind.get(..2).and_then(from_hex).ok_or(ClientNameError::Encoding)?;
        bytes.extend(byte);
        rest = &behind[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

fn hash(bytes: &[u8]) -> [u8; 4] {
    Sha256::digest(bytes).first_chunk().copied().unwrap_or_default()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|c| c.to_digit(16)).collect::<Option<Vec<_>>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).ok()).collect()
}

#[cfg(test)]
mod tests;
