//! Malformed HTTP/1: what is forwarded is what was parsed and charged.

mod answers;
mod chunks;
mod downgrade;
mod framing;
mod heads;

use std::time::Duration;

use tidegate_testkit::server::RecordingServer;

use crate::fixture::{Bounds, Pace, TestGateway};

/// What becomes of bytes that a client sends over one connection.
#[derive(Clone, Copy, Debug)]
enum Law {
    /// Nothing is forwarded, nothing charged, and the connection ends.
    Refused,
    /// Exactly requests to these targets are forwarded and charged.
    Forwarded(&'static [&'static str]),
    /// One request is charged and its head forwarded, but no whole request is.
    BrokenOff,
}

use Law::{BrokenOff, Forwarded, Refused};

type Case = (&'static str, &'static [u8], Law);

fn bounds() -> Bounds {
    Bounds {
        headers: 20,
        head_bytes: 8 << 10,
        look: Duration::from_millis(40),
        request_pace: Pace { period: Duration::from_millis(100), bytes: 1 },
        ..Bounds::default()
    }
}

/// Sends each case over a connection of its own and holds it to its law.
async fn hold(cases: &[Case]) {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100_000, bounds());
    let mut left = served.get_raw("/count").await.remaining();
    for (name, bytes, law) in cases {
        let before = upstream.requests().len();
        let mut client = served.client().await;
        client.send(bytes).await;
        let mut answers = Vec::new();
        if let Forwarded(targets) = law {
            for target in *targets {
                let answer =
                    client.response().await.unwrap_or_else(|| panic!("{name}: no answer to {target}"));
                answers.push(answer.status);
            }
            drop(client);
        } else {
            answers = client.responses().await.iter().map(|response| response.status).collect();
        }
        let now = served.get_raw("/count").await.remaining();
        let charged = left - now - 1;
        left = now;
        let mut seen: Vec<_> = upstream.requests()[before..].iter().map(|seen| seen.target.clone()).collect();
        assert_eq!(seen.pop().as_deref(), Some("/count"), "{name}");
        match law {
            Refused => {
                assert!(answers.iter().all(|status| (400..600).contains(status)), "{name}: {answers:?}");
                assert_eq!((seen, charged), (vec![], 0), "{name}: {answers:?}");
            }
            Forwarded(targets) => {
                assert!(answers.iter().all(|status| *status == 200), "{name}: {answers:?}");
                assert_eq!(
                    (seen.as_slice(), charged),
                    (strings(targets).as_slice(), targets.len() as u64),
                    "{name}"
                );
            }
            BrokenOff => {
                assert!(answers.iter().all(|status| (400..600).contains(status)), "{name}: {answers:?}");
                assert_eq!((seen, charged), (vec![], 1), "{name}: {answers:?}");
            }
        }
    }
}

fn strings(targets: &[&str]) -> Vec<String> {
    targets.iter().map(|target| (*target).to_owned()).collect()
}
