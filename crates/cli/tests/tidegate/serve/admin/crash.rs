//! The process is killed repeatedly while bans are added and removed: no acknowledged change is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_testkit::client::try_request;

use super::AdminGateway;

/// What the test knows about a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BanState {
    Banned,
    Free,
    /// A change was requested, but not acknowledged.
    Unknown,
}

type Subjects = BTreeMap<String, BanState>;

/// Adds and removes bans without a pause until the gateway stops responding.
fn change_bans(
    gateway: &AdminGateway,
    name: &str,
    acknowledged: &Arc<AtomicU64>,
) -> std::thread::JoinHandle<Subjects> {
    let (admin, token) = (gateway.admin.clone(), format!("Authorization: Bearer {}\r\n", gateway.token));
    let (name, acknowledged) = (name.to_owned(), Arc::clone(acknowledged));
    std::thread::spawn(move || {
        let mut subjects = Subjects::new();
        for number in 0_u64.. {
            // Every third ban is removed at once.
            let subject = format!("user:{name}-{number}");
            let steps: &[_] = if number % 3 == 2 { &["POST", "DELETE"] } else { &["POST"] };
            for method in steps {
                subjects.insert(subject.clone(), BanState::Unknown);
                let body = format!(r#"{{"subject":"{subject}"}}"#);
                let Ok(response) = try_request(&admin, method, "/v1/bans", &token, &body) else {
                    return subjects;
                };
                assert!(matches!(response.status, 200 | 201), "{response:?}");
                subjects.insert(
                    subject.clone(),
                    if *method == "POST" { BanState::Banned } else { BanState::Free },
                );
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
        }
        subjects
    })
}

/// Asserts that every acknowledged change is there after each kill. Returns the number of acknowledged changes.
fn kill_repeatedly(rounds: u64, seed: u64) -> u64 {
    println!("seed {seed}");
    let mut random = seed;
    let mut gateway = AdminGateway::start("");
    let mut expected = Subjects::new();
    let mut sum = 0;
    for round in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let enough = random >> 58;
        let acknowledged = Arc::new(AtomicU64::new(0));
        let changing: Vec<_> =
            (0..3).map(|n| change_bans(&gateway, &format!("{round}-{n}"), &acknowledged)).collect();
        while acknowledged.load(Ordering::Relaxed) < enough {
            std::thread::yield_now();
        }
        gateway.server.signal("-KILL");
        for changing in changing {
            expected.extend(changing.join().unwrap());
        }
        sum += acknowledged.load(Ordering::Relaxed);
        gateway = gateway.restart();
        let listed = gateway.send("GET", "/v1/bans", "").json();
        let listed: std::collections::BTreeSet<_> =
            listed["bans"].as_array().unwrap().iter().map(|ban| ban["subject"].as_str().unwrap()).collect();
        for (subject, state) in &mut expected {
            let is_listed = listed.contains(subject.as_str());
            match state {
                BanState::Banned => assert!(is_listed, "round {round}, seed {seed}: {subject} is lost"),
                BanState::Free => assert!(!is_listed, "round {round}, seed {seed}: {subject} is back"),
                // The list after the restart decides.
                BanState::Unknown => *state = if is_listed { BanState::Banned } else { BanState::Free },
            }
        }
        assert!(listed.len() <= expected.len());
    }
    sum
}

#[test]
fn acknowledged_bans_survive_kills() {
    let acknowledged = kill_repeatedly(4, u64::from(std::process::id()));
    assert!(acknowledged > 0);
}

#[test]
#[ignore = "takes minutes: cargo xtask scorecard crash"]
fn long_acknowledged_bans_survive_200_kills() {
    let acknowledged = kill_repeatedly(200, u64::from(std::process::id()));
    println!("200 kills, {acknowledged} changes acknowledged, 0 lost");
}
