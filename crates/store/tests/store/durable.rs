//! Acknowledged changes survive, and a damaged file is never treated as empty.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use pollster::block_on;
use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use tidegate_core::{Algorithm, Limit, OwnedKey, PenaltyState, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_store::PenaltyEntry;
use tidegate_store::durable::{
    BackupError, BanRecord, Contents, Durable, DurableChange, DurableError, OpenError, OverrideKey,
    OverrideRecord,
};

fn ban(reason: &str) -> BanRecord {
    BanRecord { reason: reason.to_owned(), since: Timestamp::from_secs(1_800_000_000), until: None }
}

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.redb");
    (folder, path)
}

/// Opens a file that was just closed: its writer thread may take a moment to end.
fn open(path: &std::path::Path) -> (Durable, Contents) {
    loop {
        match Durable::open(path) {
            Err(OpenError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<DurableChange>),
    Reopen,
    HandOver,
    BackUp,
}

fn changes() -> impl Strategy<Value = DurableChange> {
    let subject = prop_oneof!["[a-c]", "[a-c]", "\\PC{0,40}"];
    let client = prop_oneof![vec(0_u8..3, 1..=1), vec(any::<u8>(), 0..40)];
    let key = ("[ab]", client).prop_map(|(rule, client)| OverrideKey { rule, client });
    let until = || proptest::option::of((0_u64..1 << 53).prop_map(Timestamp::from_micros));
    let banned = ("\\PC{0,20}", until()).prop_map(|(reason, until)| BanRecord {
        reason,
        since: Timestamp::ZERO,
        until,
    });
    let limit = (0..Algorithm::ALL.len(), 1_u64..1000, 1_u64..100_000);
    let replacement =
        (limit, until(), "\\PC{0,20}").prop_map(|((algorithm, requests, seconds), until, reason)| {
            let spec = Spec::new(requests, TimeSpan::from_secs(seconds));
            OverrideRecord {
                algorithm: Algorithm::ALL[algorithm],
                spec,
                reason,
                since: Timestamp::ZERO,
                until,
            }
        });
    prop_oneof![
        (subject.clone(), banned).prop_map(|(subject, ban)| DurableChange::Ban(subject, ban)),
        subject.prop_map(DurableChange::Unban),
        (key.clone(), replacement).prop_map(|(key, replacement)| DurableChange::Override(key, replacement)),
        key.prop_map(DurableChange::RemoveOverride),
        penalty_entries().prop_map(DurableChange::SetPenalty),
        penalty_entries().prop_map(|penalty_entries| DurableChange::RemovePenalty(penalty_entries.key)),
        Just(DurableChange::ClearPenalties),
    ]
}

fn penalty_entries() -> impl Strategy<Value = PenaltyEntry> {
    let times = proptest::array::uniform4(0_u64..1 << 53);
    (0_u64..3, vec(0_u8..3, 1..=1), any::<(u32, u32)>(), times).prop_map(|(rule, client, counts, times)| {
        let [since, locked_until, expires_at, locked_for] = times;
        let key = OwnedKey { rule: RuleId::from_u64(rule), client: client.into() };
        let record = PenaltyState {
            violations: counts.0,
            level: counts.1,
            since: Timestamp::from_micros(since),
            locked_until: Timestamp::from_micros(locked_until),
            locked_for: TimeSpan::from_micros(locked_for),
        };
        PenaltyEntry { key, record, expires_at: Timestamp::from_micros(expires_at) }
    })
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => vec(changes(), 0..6).prop_map(Step::Apply),
        1 => Just(Step::Reopen),
        1 => Just(Step::HandOver),
        1 => Just(Step::BackUp),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_changes_are_present_after_every_reopening(steps in vec(steps(), 1..24)) {
        let (folder, path) = file();
        let (mut durable, found) = open(&path);
        let mut model = Contents::default();
        prop_assert_eq!(&found, &model);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Apply(changes) => {
                    block_on(durable.apply(changes.clone())).unwrap();
                    for change in changes {
                        model.apply(change);
                    }
                }
                Step::Reopen => {
                    drop(durable);
                    let (opened, found) = open(&path);
                    prop_assert_eq!(&found, &model);
                    durable = opened;
                }
                Step::HandOver => {
                    block_on(durable.release()).unwrap();
                    let (successor, found) = Durable::open(&path).unwrap();
                    prop_assert_eq!(&found, &model);
                    let rejected = block_on(durable.apply(vec![DurableChange::Unban("a".to_owned())]));
                    prop_assert!(matches!(rejected, Err(DurableError::HandedOver)));
                    // The successor writes and then stops: the old process opens the file again.
                    let change = DurableChange::Ban("b".to_owned(), ban("by the successor"));
                    block_on(successor.apply(vec![change.clone()])).unwrap();
                    model.apply(change);
                    drop(successor);
                    let found = loop {
                        match block_on(durable.resume()).unwrap() {
                            Err(OpenError::InUse { .. }) => std::thread::yield_now(),
                            resumed => break resumed.unwrap(),
                        }
                    };
                    prop_assert_eq!(&found, &model);
                }
                Step::BackUp => {
                    let copy = folder.path().join(format!("copy-{number}"));
                    block_on(durable.back_up(&copy)).unwrap();
                    prop_assert_eq!(&Durable::open(&copy).unwrap().1, &model);
                    let again = block_on(durable.back_up(&copy));
                    let is_rejected = matches!(again, Err(BackupError::Exists { .. }));
                    prop_assert!(is_rejected);
                }
            }
        }
        drop(durable);
        prop_assert_eq!(open(&path).1, model);
    }
}

#[test]
fn durable_file_is_locked_and_readable_only_by_its_owner() {
    let (folder, path) = file();
    let (durable, _) = Durable::open(&path).unwrap();
    let error = Durable::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("--takeover"), "{error}");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let copy = folder.path().join("copy");
    block_on(durable.back_up(&copy)).unwrap();
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "no temporary file is left: {names:?}");
}

#[test]
fn backup_to_a_missing_folder_fails() {
    let (folder, path) = file();
    let (durable, _) = Durable::open(&path).unwrap();
    let error = block_on(durable.back_up(&folder.path().join("none/copy"))).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
}

#[test]
fn empty_or_foreign_file_is_rejected_and_left_unchanged() {
    for bytes in [&b""[..], b"-----BEGIN PRIVATE KEY-----", &[0; 4096], &[0xff; 8192]] {
        let (_folder, path) = file();
        fs::write(&path, bytes).unwrap();
        let error = Durable::open(&path).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("Put a backup in its place"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn durable_file_of_a_newer_format_is_rejected() {
    let (_folder, path) = file();
    drop(Durable::open(&path).unwrap());
    let database = loop {
        match redb::Database::open(&path) {
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(meta).unwrap().insert("format", 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = Durable::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("newer tidegate"), "{error}");
}

/// Damage to used parts is detected; damage to unused parts changes nothing.
#[test]
fn damaged_file_is_rejected_or_has_all_contents() {
    let (folder, path) = file();
    let (durable, _) = Durable::open(&path).unwrap();
    for number in 0..50 {
        let change = DurableChange::Ban(format!("user:{number}"), ban("a reason that takes some room"));
        block_on(durable.apply(vec![change])).unwrap();
    }
    drop(durable);
    let (durable, expected) = open(&path);
    // Closed, as after a clean shutdown.
    block_on(durable.release()).unwrap();
    let sound = fs::read(&path).unwrap();
    let damaged = folder.path().join("damaged");
    let (mut found, mut harmless) = (0, 0);
    let used: Vec<_> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..200 {
        let mut bytes = sound.clone();
        match round % 4 {
            3 => bytes[random.usize(..1024)] ^= 1 << random.u8(..8),
            0 => {
                let at = used[random.usize(..used.len())];
                bytes[at] ^= 1 << random.u8(..8);
            }
            1 => {
                let start = random.usize(..bytes.len() - 4096);
                bytes[start..start + 4096].fill(0);
            }
            _ => bytes.truncate(random.usize(1..bytes.len())),
        }
        fs::write(&damaged, &bytes).unwrap();
        match Durable::open(&damaged) {
            Ok((_, contents)) => {
                assert_eq!(contents, expected, "round {round}");
                harmless += 1;
            }
            Err(OpenError::Damaged { .. } | OpenError::Newer { .. }) => {
                assert_eq!(fs::read(&damaged).unwrap(), bytes, "round {round}: the file is unchanged");
                found += 1;
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        let _ = fs::remove_file(&damaged);
    }
    println!("{found} found, {harmless} harmless");
    assert!(found > 50, "{found} found");
}

#[test]
fn durable_store_in_memory_ignores_release() {
    let durable = Durable::in_memory().unwrap();
    block_on(durable.release()).unwrap();
    block_on(durable.apply(vec![DurableChange::Ban("user:bob".to_owned(), ban(""))])).unwrap();
}

#[test]
fn override_with_burst_survives_reopening() {
    let spec = Spec { burst: Some(20), ..Spec::new(10, TimeSpan::from_secs(60)) };
    Limit::new(Algorithm::TokenBucket, spec).unwrap();
    let (_folder, path) = file();
    let (durable, _) = Durable::open(&path).unwrap();
    let key = OverrideKey { rule: "default".to_owned(), client: b"k\x03\0\0\0abc".to_vec() };
    assert!(!format!("{key:?}").contains("abc"));
    let replacement = OverrideRecord {
        algorithm: Algorithm::TokenBucket,
        spec,
        reason: String::new(),
        since: Timestamp::ZERO,
        until: Some(Timestamp::MAX),
    };
    block_on(durable.apply(vec![DurableChange::Override(key.clone(), replacement.clone())])).unwrap();
    drop(durable);
    assert_eq!(open(&path).1.overrides[&key], replacement);
}
