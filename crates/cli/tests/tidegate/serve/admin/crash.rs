//! Killed while bans are added and taken back, again and again: nothing that was acknowledged is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_testkit::client::try_request;

use super::AdminGateway;

/// What is known of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Banned,
    Free,
    /// It was asked for, and nobody answered.
    Unknown,
}

type Subjects = BTreeMap<String, Known>;

/// Bans and takes back without a pause until nobody answers.
fn change_on(
    gate: &AdminGateway,
    name: &str,
    acknowledged: &Arc<AtomicU64>,
) -> std::thread::JoinHandle<Subjects> {
    let (admin, token) = (gate.admin.clone(), format!("Authorization: Bearer {}\r\n", gate.token));
    let (name, acknowledged) = (name.to_owned(), Arc::clone(acknowledged));
    std::thread::spawn(move || {
        let mut subjects = Subjects::new();
        for number in 0_u64.. {
            // Every third is taken back at once.
            let subject = format!("user:{name}-{number}");
            let steps: &[_] = if number % 3 == 2 { &["POST", "DELETE"] } else { &["POST"] };
            for method in steps {
                subjects.insert(subject.clone(), Known::Unknown);
                let body = format!(r#"{{"subject":"{subject}"}}"#);
                let Ok(answer) = try_request(&admin, method, "/v1/bans", &token, &body) else {
                    return subjects;
                };
                assert!(matches!(answer.status, 200 | 201), "{answer:?}");
                subjects.insert(subject.clone(), if *method == "POST" { Known::Banned } else { Known::Free });
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
        }
        subjects
    })
}

/// How many changes were acknowledged; all of them are there after every kill.
fn crash(rounds: u64, seed: u64) -> u64 {
    println!("seed {seed}");
    let mut random = seed;
    let mut gate = AdminGateway::start("");
    let mut expected = Subjects::new();
    let mut sum = 0;
    for round in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let enough = random >> 58;
        let acknowledged = Arc::new(AtomicU64::new(0));
        let changing: Vec<_> =
            (0..3).map(|n| change_on(&gate, &format!("{round}-{n}"), &acknowledged)).collect();
        while acknowledged.load(Ordering::Relaxed) < enough {
            std::thread::yield_now();
        }
        gate.server.signal("-KILL");
        for changing in changing {
            expected.extend(changing.join().unwrap());
        }
        sum += acknowledged.load(Ordering::Relaxed);
        gate = gate.again();
        let listed = gate.ask("GET", "/v1/bans", "").json();
        let listed: std::collections::BTreeSet<_> =
            listed["bans"].as_array().unwrap().iter().map(|ban| ban["subject"].as_str().unwrap()).collect();
        for (subject, known) in &mut expected {
            let is_listed = listed.contains(subject.as_str());
            match known {
                Known::Banned => assert!(is_listed, "round {round}, seed {seed}: {subject} is lost"),
                Known::Free => assert!(!is_listed, "round {round}, seed {seed}: {subject} is back"),
                // From now on it is known.
                Known::Unknown => *known = if is_listed { Known::Banned } else { Known::Free },
            }
        }
        assert!(listed.len() <= expected.len());
    }
    sum
}

#[test]
fn no_acknowledged_ban_is_lost_when_it_is_killed() {
    let acknowledged = crash(4, u64::from(std::process::id()));
    assert!(acknowledged > 0);
}

#[test]
#[ignore = "takes minutes: cargo xtask scorecard crash"]
fn long_crash() {
    let acknowledged = crash(200, u64::from(std::process::id()));
    println!("200 kills, {acknowledged} changes acknowledged, 0 lost");
}
