//! Breaker, bulkhead, deadlines and cancellation.

use std::time::Duration;

use http_body_util::BodyExt;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::Clock;
use tidegate_tower::bulkhead::BulkheadConfig;
use tidegate_tower::deadline::Deadline;

use super::{Script, TestServer, URL, delayed, respond, respond_with, secs};
use crate::{BreakerConfig, Client, ClientError, Jitter, Ratio, SlowCalls};

const OTHER: &str = "http://other.example/";

#[tokio::test(start_paused = true)]
async fn breaker_of_a_failing_host_opens_and_other_hosts_are_not_affected() {
    let server = TestServer::new(|number, received| match received.host.as_str() {
        "api.example" if number < 5 => respond(500),
        _ => respond(200),
    });
    let client = server.client(Client::builder().attempts(1));
    for _ in 0..5 {
        assert_eq!(client.get(URL).send().await.unwrap().status(), 500);
    }
    let error = client.get(URL).send().await.unwrap_err();
    assert!(matches!(&error, ClientError::BreakerOpen { host, .. } if host == "http://api.example:80"));
    let open_for = error.retry_after().unwrap();
    assert!((secs(30)..=secs(33)).contains(&open_for), "{open_for:?}");
    assert_eq!(server.count(), 5, "an open breaker sends nothing");
    assert_eq!(client.get(OTHER).send().await.unwrap().status(), 200);
    tokio::time::sleep(open_for).await;
    assert_eq!(client.get(URL).send().await.unwrap().status(), 200, "one probe closes it");
    assert_eq!(client.get(URL).send().await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn breaker_counts_bodies_that_break_and_not_rejections() {
    let server = TestServer::new(|_, _| Script::ResetBody);
    let client = server.client(Client::builder());
    for _ in 0..5 {
        let error = client.get(URL).send().await.unwrap().bytes().await.unwrap_err();
        assert!(matches!(error, ClientError::Body { .. }), "{error}");
    }
    assert!(matches!(client.get(URL).send().await, Err(ClientError::BreakerOpen { .. })));
    let server = TestServer::new(|_, _| respond_with(429, &[("retry-after", "0")]));
    let client = server.client(Client::builder().attempts(1));
    for _ in 0..20 {
        let error = client.get(URL).send().await.unwrap_err();
        assert!(matches!(error, ClientError::RateLimited { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn breaker_probe_ends_at_the_head_of_its_response() {
    let server = TestServer::new(|number, _| match number {
        0..5 => respond(500),
        _ => Script::Respond(200, Vec::new(), "body"),
    });
    let client = server.client(Client::builder().attempts(1));
    for _ in 0..5 {
        assert_eq!(client.get(URL).send().await.unwrap().status(), 500);
    }
    let open_for = client.get(URL).send().await.unwrap_err().retry_after().unwrap();
    tokio::time::sleep(open_for).await;
    let unread = client.get(URL).send().await.unwrap();
    assert_eq!(client.get(URL).send().await.unwrap().status(), 200, "the probe does not wait for its body");
    assert_eq!(unread.text().await.unwrap(), "body");
}

#[tokio::test(start_paused = true)]
async fn breaker_does_not_count_the_time_that_callers_take_for_bodies() {
    let server = TestServer::new(|_, _| Script::Respond(200, Vec::new(), "body"));
    let slow = SlowCalls { over: TimeSpan::from_secs(1), rate: Ratio::from_percent(50) };
    let config = BreakerConfig { slow: Some(slow), min_calls: 2, ..BreakerConfig::default() };
    let client = server.client(Client::builder().breaker(config));
    for _ in 0..10 {
        let response = client.get(URL).send().await.unwrap();
        tokio::time::sleep(secs(5)).await;
        assert_eq!(response.text().await.unwrap(), "body");
    }
}

#[tokio::test(start_paused = true)]
async fn deadlines_of_callers_do_not_open_the_breaker() {
    let server = TestServer::new(|_, _| Script::Hang);
    let client = server.client(Client::builder());
    for _ in 0..20 {
        let error = client.get(URL).deadline(Duration::from_millis(50)).send().await.unwrap_err();
        assert!(matches!(error, ClientError::DeadlineExceeded), "{error}");
    }
    assert_eq!(server.count(), 20);
}

#[tokio::test(start_paused = true)]
async fn bulkhead_that_is_full_rejects_and_a_dropped_request_frees_its_place() {
    let server = TestServer::new(|_, received| match received.path.as_str() {
        "/slow" => Script::Hang,
        _ => respond(200),
    });
    let bulkhead = BulkheadConfig::new(2).queue(1, secs(1));
    let client = server.client(Client::builder().bulkhead(bulkhead));
    let get = |path| client.get(format!("http://api.example{path}")).send();
    let slow: Vec<_> = (0..2).map(|_| tokio::spawn(get("/slow"))).collect();
    tokio::task::yield_now().await;
    let error = get("/fast").await.unwrap_err();
    assert!(matches!(error, ClientError::BulkheadFull { concurrent: 2, .. }), "{error}");
    assert_eq!(client.get(OTHER).send().await.unwrap().status(), 200, "other hosts have their own");
    slow[0].abort();
    assert_eq!(get("/fast").await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn bulkhead_place_is_occupied_until_the_response_is_dropped() {
    let server = TestServer::new(|_, _| Script::Respond(200, Vec::new(), "body"));
    let client = server.client(Client::builder().bulkhead(BulkheadConfig::new(1)));
    let response = client.get(URL).send().await.unwrap();
    assert!(matches!(client.get(URL).send().await, Err(ClientError::BulkheadFull { .. })));
    drop(response);
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "body");
    assert!(client.get(URL).send().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn deadline_is_sent_with_each_attempt_and_nothing_starts_after_it() {
    let server = TestServer::new(|_, _| respond_with(503, &[("retry-after", "2")]));
    let client = server.client(Client::builder().backoff(secs(1), secs(1), Jitter::None));
    let response = client.get(URL).deadline(secs(5)).send().await.unwrap();
    assert_eq!(response.status(), 503, "the last response before the deadline");
    let received = server.received();
    let left: Vec<u64> = received
        .iter()
        .map(|received| received.headers["x-request-deadline-ms"].to_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!((left.len(), left[0]), (3, 5_000));
    for (received, left) in received.iter().zip(left) {
        assert!(received.at < secs(5));
        let actual = u64::try_from(secs(5).saturating_sub(received.at).as_millis()).unwrap();
        assert!(left <= actual && left + 2 >= actual, "{left} of {actual}");
    }
    let error = client.get(URL).deadline(Duration::ZERO).send().await.unwrap_err();
    assert!(matches!(error, ClientError::DeadlineExceeded) && server.count() == 3);
}

#[tokio::test(start_paused = true)]
async fn body_that_never_stalls_ends_at_the_deadline() {
    let server = TestServer::new(|_, _| Script::EndlessBody);
    let client = server.client(Client::builder());
    let mut body = client.get(URL).deadline(secs(5)).send().await.unwrap().into_body();
    for _ in 0..5 {
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(secs(1)).await;
    }
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::DeadlineExceeded), "{error}");
}

#[tokio::test(start_paused = true)]
async fn deadline_covers_the_body_of_a_response_that_is_retried() {
    let server = TestServer::new(|_, _| Script::HangingBody(503, &[]));
    let client = server.client(Client::builder().backoff(secs(1), secs(1), Jitter::None));
    let deadline = Duration::from_millis(1_500);
    let error = client.get(URL).deadline(deadline).send().await.map(|response| response.status());
    assert!(server.clock.elapsed() <= deadline + Duration::from_millis(2), "{:?}", server.clock.elapsed());
    assert!(server.count() == 2, "the retry was in time: {error:?}");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_drip_for_ever_end_and_free_their_places() {
    let server = TestServer::new(|_, received| match received.path.as_str() {
        "/drip" => Script::DrippingBody,
        _ => respond(200),
    });
    let client = server.client(Client::builder().breaker(None));
    let drip = async |client: Client| {
        let response = client.get("http://api.example/drip").send().await.unwrap();
        response.bytes().await.map(|_| ())
    };
    let dripping: Vec<_> = (0..64).map(|_| tokio::spawn(drip(client.clone()))).collect();
    tokio::time::sleep(secs(1)).await;
    assert!(matches!(client.get(URL).send().await, Err(ClientError::BulkheadFull { .. })));
    tokio::time::sleep(secs(600)).await;
    assert_eq!(client.get(URL).send().await.unwrap().status(), 200);
    for ended in dripping {
        assert!(matches!(ended.await.unwrap(), Err(ClientError::Timeout { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_of_the_current_task_applies_and_the_earlier_one_wins() {
    let server = TestServer::new(|_, _| Script::Hang);
    let client = server.client(Client::builder().deadline(secs(100)));
    let task = Deadline::at(server.clock.now() + TimeSpan::from_secs(3));
    let error = task.scope(client.get(URL).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::DeadlineExceeded));
    assert_eq!(server.clock.elapsed().as_secs(), 3);
    let far = Deadline::at(Timestamp::MAX);
    assert!(far.scope(client.get(URL).deadline(secs(1)).send()).await.is_err());
    assert_eq!(server.clock.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn requests_cancelled_at_any_time_leave_nothing_behind() {
    let server = TestServer::new(|number, received| match received.path.as_str() {
        "/end" => respond(200),
        _ => match number % 5 {
            0 => delayed(Duration::from_millis(700), respond(200)),
            1 => respond(503),
            2 => respond_with(429, &[("retry-after", "1")]),
            3 => Script::Reset,
            _ => Script::Hang,
        },
    });
    let bulkhead = BulkheadConfig::new(3).queue(2, secs(1));
    let client = server.client(Client::builder().bulkhead(bulkhead).breaker(None));
    for round in 0..500_u64 {
        let requests: Vec<_> = (0..4).map(|_| tokio::spawn(client.get(URL).send())).collect();
        tokio::time::sleep(Duration::from_millis(round * 37 % 2_500)).await;
        requests.iter().for_each(tokio::task::JoinHandle::abort);
        for request in requests {
            let _ = request.await;
        }
    }
    tokio::time::sleep(secs(120)).await;
    let all = (0..3).map(|_| tokio::spawn(client.get("http://api.example/end").send()));
    for request in all.collect::<Vec<_>>() {
        assert_eq!(request.await.unwrap().unwrap().status(), 200, "all places are free");
    }
    assert_eq!(client.retries_left(URL).unwrap(), 10, "no retry is withdrawn");
}
