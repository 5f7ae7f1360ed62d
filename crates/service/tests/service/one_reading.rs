//! Gateway, decision service, tower layer and `explain` read generated requests alike: with the same reason to reject one, or the
//! same rules, counters and costs.

mod generator;
mod interfaces;
mod recording_store;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use crate::one_reading::generator::Generator;
use crate::one_reading::interfaces::{Interfaces, UNVERIFIED, VERIFIED};

/// How one interface has read a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ObservedReading {
    /// The reason for which it is rejected before its limits are checked.
    Refused(String),
    /// The rules, counters, costs and roles that were checked; none if the client is banned.
    Checked(Vec<String>),
}

/// The interfaces that can express a request, and what each made of it.
type ReadingOfEach = BTreeMap<&'static str, ObservedReading>;

#[tokio::test]
async fn generated_requests_are_read_alike_by_every_interface() {
    compare(1_000, 1).await;
}

#[tokio::test]
#[ignore = "takes a minute: cargo xtask scorecard readings"]
async fn long_generated_requests_are_read_alike_by_every_interface() {
    compare(10_000, RandomState::new().hash_one(())).await;
}

/// Sends half of the requests under each policy.
async fn compare(count: u64, seed: u64) {
    let mut generator = Generator::new(seed);
    let (mut refused, mut checked, mut trusted) = (0, 0, 0);
    let mut expressed = BTreeMap::<&str, u64>::new();
    for clients in [VERIFIED, UNVERIFIED] {
        let mut interfaces = Interfaces::start(clients).await;
        for position in 0..count / 2 {
            let request = generator.next();
            let readings = interfaces.read(&request).await;
            if let Some(difference) = difference(&readings) {
                panic!("request {position} of seed {seed}: {difference}\n{request:#?}\n{readings:#?}");
            }
            match &readings["gateway"] {
                ObservedReading::Refused(_) => refused += 1,
                ObservedReading::Checked(_) => checked += 1,
            }
            trusted += u64::from(request.is_trusted);
            for interface in readings.keys() {
                *expressed.entry(interface).or_default() += 1;
            }
        }
    }
    println!(
        "seed {seed}: {checked} checked, {refused} refused, {trusted} from a trusted proxy; {expressed:?}"
    );
    // Otherwise the comparison would prove little.
    assert!(checked > count / 4 && refused > count / 8 && trusted > count / 4);
    assert!(expressed.len() == 6 && expressed.values().all(|requests| *requests > count / 8));
}

/// What differs, if anything does.
fn difference(readings: &ReadingOfEach) -> Option<String> {
    let gateway = &readings["gateway"];
    readings.iter().find(|(interface, reading)| !is_same(gateway, interface, reading)).map(
        |(interface, reading)| format!("the gateway reads {gateway:?}, but {interface} reads {reading:?}"),
    )
}

fn is_same(gateway: &ObservedReading, interface: &str, reading: &ObservedReading) -> bool {
    let is_refused_with = |reading: &ObservedReading, text: &str| match reading {
        ObservedReading::Refused(reason) => reason.contains(text),
        ObservedReading::Checked(_) => false,
    };
    // Only gateway and `explain` have routes.
    let has_no_routes = !matches!(interface, "gateway" | "explain");
    // Where somebody else forwards the request, a header that the gateway would remove is an error.
    let is_forwarded_elsewhere = matches!(interface, "check" | "authorize" | "rls");
    reading == gateway
        || has_no_routes && is_refused_with(gateway, "no matching route")
        || is_forwarded_elsewhere && is_refused_with(reading, "many servers read header")
}
