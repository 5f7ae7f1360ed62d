//! What holds whatever servers do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use proptest::prelude::*;

use super::hostile::run;
use super::{Received, Script, TestServer, delayed, respond, respond_with, secs};
use crate::{BulkheadConfig, Client};

const PATHS: [&str; 5] = ["/", "/items/1", "/items/2", "/users/ann", "/users/bob"];

fn url(path: &str) -> String {
    format!("http://api.example{path}")
}

/// What a server does with a request, as data.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Reject(u64),
    RejectSilently,
    RejectAndHang,
    Fail,
    FailAndHang,
    Reset,
    Hang,
    Drip,
    Refuse,
}

impl Fault {
    fn script(self) -> Script {
        match self {
            Self::None => respond(200),
            Self::Reject(seconds) => respond_with(429, &[("retry-after", &seconds.to_string())]),
            Self::RejectSilently => respond(429),
            Self::RejectAndHang => Script::HangingBody(429, &[("retry-after", "2")]),
            Self::Fail => respond(503),
            Self::FailAndHang => Script::HangingBody(503, &[("retry-after", "1")]),
            Self::Reset => Script::Reset,
            Self::Hang => Script::Hang,
            Self::Drip => Script::DrippingBody,
            Self::Refuse => Script::RefuseConnection,
        }
    }
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::None),
        (0_u64..20).prop_map(Fault::Reject),
        Just(Fault::RejectSilently),
        Just(Fault::RejectAndHang),
        Just(Fault::Fail),
        Just(Fault::FailAndHang),
        Just(Fault::Reset),
        Just(Fault::Hang),
        Just(Fault::Drip),
        Just(Fault::Refuse),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn request_never_takes_longer_than_its_deadline(
        faults in prop::collection::vec((any_fault(), 0_u64..3_000), 1..12),
        deadline in 1_u64..8_000,
        timeout in 1_u64..4_000,
    ) {
        run(async move {
            let server = TestServer::new(move |number, _| {
                let (fault, delay) = faults[number % faults.len()];
                delayed(Duration::from_millis(delay), fault.script())
            });
            let bulkhead = BulkheadConfig::new(2).queue(100, secs(10));
            let client = server.client(Client::builder().bulkhead(bulkhead));
            let deadline = Duration::from_millis(deadline);
            let requests: Vec<_> = (0..6).map(|number| {
                let request = client.get(url(PATHS[number % PATHS.len()]));
                let request = request.timeout(Duration::from_millis(timeout)).deadline(deadline);
                let clock = Arc::clone(&server.clock);
                tokio::spawn(async move {
                    if let Ok(response) = request.send().await {
                        let _ = response.bytes().await;
                    }
                    clock.elapsed()
                })
            }).collect();
            for request in requests {
                let end = request.await.unwrap();
                // Timers have a granularity of one millisecond.
                assert!(end <= deadline + Duration::from_millis(2), "{end:?} of {deadline:?}");
            }
            assert!(server.times().iter().all(|at| *at < deadline), "nothing starts after it");
        });
    }

    #[test]
    fn nothing_is_sent_to_a_host_before_the_end_of_a_rejection(
        script in prop::collection::vec((prop::option::of(1_u64..20), 0_u64..2_000), 1..20),
        places in 1_usize..6,
        gaps in prop::collection::vec(0_u64..1_500, 20..40),
    ) {
        run(async move {
            let rejections = Arc::new(Mutex::new(Vec::new()));
            let shared = Arc::clone(&rejections);
            let server = TestServer::new(move |number, received: &Received| {
                let (rejection, delay) = script[number % script.len()];
                let delay = Duration::from_millis(delay);
                let Some(seconds) = rejection else { return delayed(delay, respond(200)) };
                shared.lock().unwrap().push((received.at + delay, secs(seconds)));
                delayed(delay, respond_with(429, &[("retry-after", &seconds.to_string())]))
            });
            let bulkhead = BulkheadConfig::new(places).queue(100, secs(30));
            let client = server.client(Client::builder().bulkhead(bulkhead));
            let mut requests = Vec::new();
            for (number, gap) in gaps.into_iter().enumerate() {
                let request = client.get(url(PATHS[number % PATHS.len()]));
                requests.push(tokio::spawn(request.timeout(secs(5)).send()));
                tokio::time::sleep(Duration::from_millis(gap)).await;
            }
            for request in requests {
                let _ = request.await;
            }
            let (rejections, times) = (rejections.lock().unwrap().clone(), server.times());
            for (at, wait) in rejections {
                let early = times.iter().filter(|time| (at + Duration::from_millis(2)..at + wait).contains(*time));
                assert_eq!(early.count(), 0, "after {at:?}, before the end of {wait:?}: {times:?}");
            }
        });
    }

    #[test]
    fn stored_response_is_never_given_to_another_user(
        requests in prop::collection::vec((0_usize..3, 0_usize..5, 0_usize..3, 0_u64..40), 1..40),
        control in prop::sample::select(vec!["public, max-age=60", "private, max-age=5", "s-maxage=60", "no-cache", "max-age=60, immutable", ""]),
        vary in prop::sample::select(vec!["", "accept", "cookie"]),
    ) {
        const USERS: [(&str, &str); 5] =
            [("x-none", ""), ("cookie", "a"), ("cookie", "b"), ("x-api-key", "a"), ("authorization", "a")];
        run(async move {
            let server = TestServer::new(move |_, received| {
                if received.headers.contains_key("if-none-match") {
                    return respond_with(304, &[("etag", "\"e\""), ("cache-control", control)]);
                }
                let response = http::Response::builder().header("etag", "\"e\"");
                let response = response.header("cache-control", control).header("vary", vary);
                let body = Full::from(identity(&received.path, &received.headers));
                Script::Custom(response.body(body.map_err(|never| match never {}).boxed_unsync()).unwrap())
            });
            let client = server.client(Client::builder().cache(1 << 20));
            for (path, user, partition, later) in requests {
                let (name, value) = USERS[user];
                let partition = ["", "a", "b"][partition];
                let request = client.get(url(PATHS[path])).header(name, value).header("x-partition", partition);
                let response = request.partition(partition).send().await.unwrap();
                let mut headers = http::HeaderMap::new();
                headers.insert(http::HeaderName::from_static(name), value.parse().unwrap());
                headers.insert("x-partition", partition.parse().unwrap());
                assert_eq!(response.text().await.unwrap(), identity(PATHS[path], &headers));
                tokio::time::sleep(secs(later)).await;
            }
        });
    }
}

/// Whose response it is.
fn identity(path: &str, headers: &http::HeaderMap) -> String {
    let names = ["cookie", "x-api-key", "authorization", "x-partition"];
    format!("{path} {:?}", names.map(|name| headers.get(name)))
}
