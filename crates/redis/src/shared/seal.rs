//! Encrypts shared records, so that a copy of the database reveals no client.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{hkdf, hmac};
use tidegate_core::Timestamp;
use tidegate_store::SharedRecord;

/// The first byte of the plain text.
const FORMAT: u8 = 1;
/// The length of a field in bytes.
pub(super) const FIELD_LENGTH: usize = 16;

/// The name of a record in Redis: a keyed hash of its id.
pub(super) type Field = [u8; FIELD_LENGTH];

/// Names and encrypts records with keys that are derived from the secret of all nodes.
pub(super) struct Sealer {
    cipher: RandomizedNonceKey,
    names: hmac::Key,
}

/// A sealed record cannot be opened: another secret, damaged, or a newer format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a shared record cannot be opened; all nodes need the same `store.secret_file`")]
pub(crate) struct UnsealError;

impl Sealer {
    /// `None` if the cryptographic library fails.
    pub(super) fn new(secret: &[u8]) -> Option<Self> {
        let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, b"tidegate shared records").extract(secret);
        let mut key = [0; 32];
        extracted.expand(&[b"seal"], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key)).ok()?;
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &key).ok()?;
        extracted.expand(&[b"name"], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key)).ok()?;
        Some(Self { cipher, names: hmac::Key::new(hmac::HMAC_SHA256, &key) })
    }

    /// The name of the record `id` in Redis.
    pub(super) fn field(&self, id: &[u8]) -> Field {
        let mut field = Field::default();
        for (byte, hash) in field.iter_mut().zip(hmac::sign(&self.names, id).as_ref()) {
            *byte = *hash;
        }
        field
    }

    /// Encrypts `plain`; `context` must be the same when it is opened.
    pub(super) fn seal(&self, context: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = plain.to_vec();
        let nonce = self.cipher.seal_in_place_append_tag(Aad::from(context), &mut sealed).ok()?;
        let mut out = nonce.as_ref().to_vec();
        out.append(&mut sealed);
        Some(out)
    }

    /// Decrypts what [`seal`](Self::seal) returned.
    pub(super) fn open(&self, context: &[u8], sealed: &[u8]) -> Result<Vec<u8>, UnsealError> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or(UnsealError)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| UnsealError)?;
        let mut text = text.to_vec();
        let plain =
            self.cipher.open_in_place(nonce, Aad::from(context), &mut text).map_err(|_| UnsealError)?;
        Ok(plain.to_vec())
    }

    /// Encrypts a record.
    pub(super) fn seal_record(&self, record: &SharedRecord) -> Option<Vec<u8>> {
        self.seal(&context(&self.field(&record.id), record.changed), &encode(record))
    }

    /// Decrypts the record that Redis keeps under `field`.
    pub(super) fn open_record(
        &self,
        field: &Field,
        changed: Timestamp,
        sealed: &[u8],
    ) -> Result<SharedRecord, UnsealError> {
        let plain = self.open(&context(field, changed), sealed)?;
        decode(&plain, changed).ok_or(UnsealError)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

/// What a sealed record is bound to: its name, and the time by which Redis compares versions.
fn context(field: &Field, changed: Timestamp) -> Vec<u8> {
    [field.as_slice(), &changed.as_micros().to_be_bytes()].concat()
}

/// Format, expiry (0 for never), length of the id, id, whether there is a body, body.
fn encode(record: &SharedRecord) -> Vec<u8> {
    let mut plain = vec![FORMAT];
    plain.extend(record.expires.map_or(0, Timestamp::as_micros).to_be_bytes());
    plain.extend(u32::try_from(record.id.len()).unwrap_or(u32::MAX).to_be_bytes());
    plain.extend(&record.id);
    plain.push(u8::from(record.body.is_some()));
    plain.extend(record.body.iter().flatten());
    plain
}

fn decode(plain: &[u8], changed: Timestamp) -> Option<SharedRecord> {
    let (format, rest) = plain.split_first()?;
    let (expires, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (id, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    let (has_body, body) = rest.split_first()?;
    if *format != FORMAT {
        return None;
    }
    let expires = Some(u64::from_be_bytes(*expires)).filter(|at| *at != 0).map(Timestamp::from_micros);
    let body = (*has_body == 1).then(|| body.to_vec());
    Some(SharedRecord { id: id.to_vec(), changed, expires, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SharedRecord {
        SharedRecord {
            id: b"bapi_key:sk_live_1".to_vec(),
            changed: Timestamp::from_secs(1_800_000_000),
            expires: None,
            body: Some(b"reason".to_vec()),
        }
    }

    #[test]
    fn sealed_record_opens_only_with_its_secret_name_and_time() {
        let sealer = Sealer::new(b"one").unwrap();
        let record = record();
        let (field, text) = (sealer.field(&record.id), sealer.seal_record(&record).unwrap());
        assert_eq!(sealer.open_record(&field, record.changed, &text), Ok(record.clone()));
        let later = Timestamp::from_secs(1_800_000_001);
        assert_eq!(sealer.open_record(&field, later, &text), Err(UnsealError));
        assert_eq!(sealer.open_record(&Field::default(), record.changed, &text), Err(UnsealError));
        let other = Sealer::new(b"two").unwrap();
        assert_eq!(other.open_record(&field, record.changed, &text), Err(UnsealError));
        assert_ne!(other.field(&record.id), field);
    }

    #[test]
    fn sealed_record_contains_neither_id_nor_body() {
        let sealed = Sealer::new(b"").unwrap().seal_record(&record()).unwrap();
        let contains = |text: &[u8]| sealed.windows(text.len()).any(|window| window == text);
        assert!(!contains(b"sk_live_1") && !contains(b"reason"));
    }

    #[test]
    fn removed_record_keeps_its_id_and_expiry() {
        let sealer = Sealer::new(b"one").unwrap();
        let removed = SharedRecord { body: None, expires: Some(Timestamp::from_secs(2)), ..record() };
        let text = sealer.seal_record(&removed).unwrap();
        assert_eq!(sealer.open_record(&sealer.field(&removed.id), removed.changed, &text), Ok(removed));
    }
}
