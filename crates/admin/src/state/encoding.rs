//! Bans, overrides and penalties as shared records.
//!
//! The id of a record is a letter for its kind and the key; the body is JSON. A node ignores kinds and fields that it does
//! not know.
//!
//! The times in a body are those of the node that wrote it, whose clock may be wrong. The expiry of a record is converted to the
//! clock of the node that reads it. So the end of a ban or an override is the expiry, and other times that count are moved
//! with it.

use serde::{Deserialize, Serialize};
use tidegate_core::{CounterKey, Limit, OwnedKey, PenaltyState, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_policy::{Ban, Subject};
use tidegate_store::durable::{OverrideKey, OverrideRecord};
use tidegate_store::{PenaltyEntry, SharedRecord};

/// How long the mark of a removed record is kept.
const REMOVAL_LIFETIME: TimeSpan = TimeSpan::from_secs(30 * 86_400);
const BAN: u8 = b'b';
const OVERRIDE: u8 = b'o';
const PENALTY: u8 = b'p';
/// A message: a violation on another node.
const VIOLATION: u8 = b'v';

/// A change of another node.
#[derive(Debug)]
pub(super) enum RemoteChange {
    Ban(Ban),
    Unban(Subject),
    Override(OverrideKey, OverrideRecord),
    RemoveOverride(OverrideKey),
    Penalty(PenaltyEntry),
    /// An operator lifted it at this time.
    RemovePenalty(OwnedKey, Timestamp),
}

#[derive(Serialize, Deserialize)]
struct BanBody {
    reason: String,
    since: u64,
    until: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct OverrideBody {
    algorithm: String,
    requests: u64,
    window: u64,
    burst: Option<u64>,
    reason: String,
    since: u64,
    until: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct PenaltyBody {
    violations: u32,
    level: u32,
    since: u64,
    locked_until: u64,
    locked_for: u64,
    expires_at: u64,
}

/// The id of a subject's ban.
pub(super) fn ban_id(subject: &Subject) -> Vec<u8> {
    [&[BAN], subject.to_string().as_bytes()].concat()
}

/// The id of an override. The name of a rule contains no zero byte.
pub(super) fn override_id(key: &OverrideKey) -> Vec<u8> {
    [&[OVERRIDE], key.rule.as_bytes(), &[0], key.client.as_slice()].concat()
}

fn penalty_id(key: &OwnedKey) -> Vec<u8> {
    [&[PENALTY], key.rule.as_u64().to_be_bytes().as_slice(), &key.client].concat()
}

/// A record that says that `id` was removed at `now`.
pub(super) fn removal(id: Vec<u8>, changed: Timestamp, now: Timestamp) -> SharedRecord {
    SharedRecord { id, changed, expires: Some(now + REMOVAL_LIFETIME), body: None }
}

pub(super) fn penalty_removal(key: &OwnedKey, changed: Timestamp, now: Timestamp) -> SharedRecord {
    removal(penalty_id(key), changed, now)
}

pub(super) fn ban_record(ban: &Ban, changed: Timestamp) -> SharedRecord {
    let (since, until) = (ban.since.as_micros(), ban.until.map(Timestamp::as_micros));
    let body = to_json(&BanBody { reason: ban.reason.clone(), since, until });
    SharedRecord { id: ban_id(&ban.subject), changed, expires: ban.until, body: Some(body) }
}

pub(super) fn override_record(
    key: &OverrideKey,
    record: &OverrideRecord,
    changed: Timestamp,
) -> SharedRecord {
    let body = to_json(&OverrideBody {
        algorithm: record.algorithm.to_string(),
        requests: record.spec.requests,
        window: record.spec.window.as_micros(),
        burst: record.spec.burst,
        reason: record.reason.clone(),
        since: record.since.as_micros(),
        until: record.until.map(Timestamp::as_micros),
    });
    SharedRecord { id: override_id(key), changed, expires: record.until, body: Some(body) }
}

pub(super) fn penalty_record(entry: &PenaltyEntry, changed: Timestamp) -> SharedRecord {
    let PenaltyState { violations, level, since, locked_until, locked_for } = entry.record;
    let body = to_json(&PenaltyBody {
        violations,
        level,
        since: since.as_micros(),
        locked_until: locked_until.as_micros(),
        locked_for: locked_for.as_micros(),
        expires_at: entry.expires_at.as_micros(),
    });
    SharedRecord { id: penalty_id(&entry.key), changed, expires: Some(entry.expires_at), body: Some(body) }
}

/// A message about a violation by `key`.
pub(super) fn violation_message(key: CounterKey<'_>) -> Vec<u8> {
    [&[VIOLATION], key.rule.as_u64().to_be_bytes().as_slice(), key.client].concat()
}

/// The key of a message about a violation.
pub(super) fn read_violation(message: &[u8]) -> Option<OwnedKey> {
    message.strip_prefix(&[VIOLATION]).and_then(read_key)
}

/// What `record` changes; `None` if this version does not understand it.
pub(super) fn read(record: &SharedRecord) -> Option<RemoteChange> {
    let (kind, key) = record.id.split_first()?;
    let body = record.body.as_deref();
    match *kind {
        BAN => {
            // Subjects are complete, so the default prefix is not used.
            let subject = Subject::parse(std::str::from_utf8(key).ok()?, 128).ok()?;
            let Some(body) = body else { return Some(RemoteChange::Unban(subject)) };
            let BanBody { reason, since, .. } = serde_json::from_slice(body).ok()?;
            let since = Timestamp::from_micros(since);
            Some(RemoteChange::Ban(Ban { subject, reason, since, until: record.expires }))
        }
        OVERRIDE => {
            let end = key.iter().position(|byte| *byte == 0)?;
            let (rule, client) = (key.get(..end)?, key.get(end + 1..)?);
            let key = OverrideKey { rule: String::from_utf8(rule.to_vec()).ok()?, client: client.to_vec() };
            match body {
                Some(body) => Some(RemoteChange::Override(key, read_override(body, record.expires)?)),
                None => Some(RemoteChange::RemoveOverride(key)),
            }
        }
        PENALTY => {
            let key = read_key(key)?;
            let Some(body) = body else {
                let lifted = record.expires.map_or(record.changed, |expires| expires - REMOVAL_LIFETIME);
                return Some(RemoteChange::RemovePenalty(key, lifted));
            };
            Some(RemoteChange::Penalty(read_penalty(key, body, record.expires)?))
        }
        _ => None,
    }
}

fn read_key(bytes: &[u8]) -> Option<OwnedKey> {
    let (rule, client) = bytes.split_first_chunk()?;
    Some(CounterKey::new(RuleId::from_u64(u64::from_be_bytes(*rule)), client).into())
}

fn read_override(body: &[u8], until: Option<Timestamp>) -> Option<OverrideRecord> {
    let body: OverrideBody = serde_json::from_slice(body).ok()?;
    let algorithm = body.algorithm.parse().ok()?;
    let spec = Spec { burst: body.burst, ..Spec::new(body.requests, TimeSpan::from_micros(body.window)) };
    Limit::new(algorithm, spec).ok()?;
    let since = Timestamp::from_micros(body.since);
    Some(OverrideRecord { algorithm, spec, reason: body.reason, since, until })
}

fn read_penalty(key: OwnedKey, body: &[u8], expires: Option<Timestamp>) -> Option<PenaltyEntry> {
    let body: PenaltyBody = serde_json::from_slice(body).ok()?;
    let expires_at = Timestamp::from_micros(body.expires_at);
    let read_at = expires.unwrap_or(expires_at);
    let moved =
        |micros| Timestamp::from_micros(micros) + read_at.since(expires_at) - expires_at.since(read_at);
    let record = PenaltyState {
        violations: body.violations,
        level: body.level,
        since: moved(body.since),
        locked_until: moved(body.locked_until),
        locked_for: TimeSpan::from_micros(body.locked_for),
    };
    Some(PenaltyEntry { key, record, expires_at: read_at })
}

fn to_json(body: &impl Serialize) -> Vec<u8> {
    // These types have no keys that JSON lacks.
    serde_json::to_vec(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tidegate_core::Algorithm;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn ban_record_is_read_as_written() {
        let subject = Subject::parse("user:bob", 64).unwrap();
        let ban = Ban { subject: subject.clone(), reason: "abuse".to_owned(), since: NOW, until: None };
        let read_back = read(&ban_record(&ban, NOW));
        assert!(
            matches!(read_back, Some(RemoteChange::Ban(read)) if read.subject == subject && read.reason == "abuse")
        );
        let removed = read(&removal(ban_id(&subject), NOW, NOW));
        assert!(matches!(removed, Some(RemoteChange::Unban(read)) if read == subject));
    }

    #[test]
    fn override_record_is_read_as_written() {
        let key = OverrideKey { rule: "default".to_owned(), client: b"k\0ey".to_vec() };
        let spec = Spec { burst: Some(3), ..Spec::new(5, TimeSpan::from_secs(60)) };
        let record = OverrideRecord {
            algorithm: Algorithm::TokenBucket,
            spec,
            reason: String::new(),
            since: NOW,
            until: Some(NOW + TimeSpan::from_secs(9)),
        };
        let read_back = read(&override_record(&key, &record, NOW));
        assert!(matches!(read_back, Some(RemoteChange::Override(k, r)) if k == key && r == record));
    }

    #[test]
    fn record_of_a_node_with_another_clock_ends_with_its_converted_expiry() {
        let skew = TimeSpan::from_secs(5);
        let read_elsewhere = |record: SharedRecord| {
            read(&SharedRecord { expires: record.expires.map(|at| at + skew), ..record }).unwrap()
        };
        let end = NOW + TimeSpan::from_secs(4);
        let subject = Subject::parse("user:bob", 64).unwrap();
        let ban = Ban { subject, reason: String::new(), since: NOW, until: Some(end) };
        let RemoteChange::Ban(ban) = read_elsewhere(ban_record(&ban, NOW)) else { panic!("a ban") };
        assert_eq!((ban.since, ban.until), (NOW, Some(end + skew)));
        let key = OwnedKey::from(CounterKey::new(RuleId::named("default"), b"bob"));
        let record = PenaltyState {
            violations: 3,
            level: 1,
            since: end,
            locked_until: end,
            locked_for: TimeSpan::from_secs(4),
        };
        let entry = PenaltyEntry { key, record, expires_at: end + TimeSpan::from_secs(60) };
        let RemoteChange::Penalty(moved) = read_elsewhere(penalty_record(&entry, NOW)) else {
            panic!("a penalty")
        };
        assert_eq!((moved.record.since, moved.record.locked_until), (end + skew, end + skew));
        assert_eq!(moved.expires_at, entry.expires_at + skew);
        let removal = penalty_removal(&entry.key, NOW + skew, NOW);
        let RemoteChange::RemovePenalty(_, lifted) = read_elsewhere(removal) else { panic!("a removal") };
        assert_eq!(lifted, NOW + skew);
    }

    #[test]
    fn record_of_an_unknown_kind_or_with_an_invalid_body_is_ignored() {
        let record = |id: &[u8], body: &[u8]| {
            let (id, body) = (id.to_vec(), Some(body.to_vec()));
            read(&SharedRecord { id, changed: NOW, expires: None, body })
        };
        assert!(record(b"x", b"{}").is_none());
        assert!(record(b"", b"{}").is_none());
        assert!(record(b"buser:bob", b"[").is_none());
        assert!(record(b"odefault", b"{}").is_none());
    }
}
