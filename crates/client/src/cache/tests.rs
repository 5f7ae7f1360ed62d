use std::time::Duration;

use crate::Client;
use crate::tests::{Script, TestServer, URL, respond, respond_with, secs};

fn cached(script: impl Fn(usize) -> Script + Send + Sync + 'static) -> (Client, std::sync::Arc<TestServer>) {
    let server = TestServer::new(move |number, _| script(number));
    (server.client(Client::builder().cache(1 << 20)), server)
}

fn body(text: &'static str, headers: &[(&'static str, &str)]) -> Script {
    match respond_with(200, headers) {
        Script::Respond(status, headers, _) => Script::Respond(status, headers, text),
        other => other,
    }
}

#[tokio::test(start_paused = true)]
async fn fresh_response_is_served_without_a_request() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    for attempts in [1, 0, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(response.attempts(), attempts);
        assert_eq!(response.text().await.unwrap(), "one");
    }
    tokio::time::sleep(secs(61)).await;
    client.get(URL).send().await.unwrap();
    assert_eq!(server.count(), 2, "a stale response is requested again");
}

#[tokio::test(start_paused = true)]
async fn stale_response_that_has_not_changed_is_served_again() {
    let (client, server) = cached(|number| match number {
        0 => body("one", &[("cache-control", "max-age=1"), ("etag", "\"a\"")]),
        _ => respond_with(304, &[("cache-control", "max-age=60"), ("etag", "\"a\"")]),
    });
    client.get(URL).send().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for attempts in [1, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.attempts()), (200, attempts));
        assert_eq!(response.text().await.unwrap(), "one");
    }
    assert_eq!(server.received()[1].headers["if-none-match"], "\"a\"");
}

#[tokio::test(start_paused = true)]
async fn validation_that_confirms_another_response_is_requested_again_without_conditions() {
    let (client, server) = cached(|number| match number {
        0 => body("one", &[("cache-control", "max-age=1"), ("etag", "\"a\"")]),
        1 => respond_with(304, &[("cache-control", "max-age=60"), ("etag", "\"b\"")]),
        _ => body("two", &[("cache-control", "max-age=60"), ("etag", "\"b\"")]),
    });
    client.get(URL).send().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    for attempts in [2, 0] {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.attempts()), (200, attempts));
        assert_eq!(response.text().await.unwrap(), "two");
    }
    let received = server.received();
    assert!(received[1].headers.contains_key("if-none-match"));
    assert!(!received[2].headers.contains_key("if-none-match"));
}

#[tokio::test(start_paused = true)]
async fn private_and_authorized_responses_are_not_stored() {
    let (client, server) = cached(|_| body("mine", &[("cache-control", "private, max-age=60")]));
    client.get(URL).send().await.unwrap();
    client.get(URL).send().await.unwrap();
    assert_eq!(server.count(), 2);
    let (client, server) = cached(|_| body("mine", &[("cache-control", "max-age=60")]));
    client.get(URL).header("authorization", "Bearer a").send().await.unwrap();
    client.get(URL).header("authorization", "Bearer b").send().await.unwrap();
    assert_eq!(server.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn change_of_a_resource_removes_its_response_and_errors_are_not_stored() {
    let (client, server) = cached(|number| match number {
        0 => respond(404),
        _ => body("one", &[("cache-control", "max-age=60")]),
    });
    for _ in 0..3 {
        client.get(URL).send().await.unwrap();
    }
    assert_eq!(server.count(), 2, "only the 404 was requested again");
    client.put(URL).body("two").send().await.unwrap();
    client.get(URL).send().await.unwrap();
    assert_eq!(server.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn cache_that_is_full_removes_the_least_recently_used() {
    let server = TestServer::new(|_, _| body("x", &[("cache-control", "max-age=3600")]));
    let client = server.client(Client::builder().cache(16 << 10));
    let get = async |path: &str| client.get(format!("{URL}/{path}")).send().await.unwrap().attempts();
    for path in ["a", "b"] {
        get(path).await;
    }
    for number in 0..20 {
        get("a").await;
        get(&number.to_string()).await;
    }
    assert_eq!((get("a").await, get("19").await, get("b").await), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn cache_counts_the_headers_of_responses() {
    let server = TestServer::new(|_, received| {
        let long = "x".repeat(if received.path.ends_with("long") { 200_000 } else { 100_000 });
        body("x", &[("cache-control", "max-age=3600"), ("x-long", &long)])
    });
    let client = server.client(Client::builder().cache(1 << 20));
    let get = async |path: &str| client.get(format!("{URL}/{path}")).send().await.unwrap().attempts();
    for number in 0..20 {
        get(&number.to_string()).await;
    }
    assert_eq!((get("19").await, get("11").await, get("0").await), (0, 0, 1), "ten fit");
    get("long").await;
    assert_eq!(get("long").await, 1, "more than an eighth of the cache");
}

#[tokio::test(start_paused = true)]
async fn partitions_have_responses_of_their_own_and_a_change_removes_all() {
    let (client, server) = cached(|_| body("one", &[("cache-control", "max-age=60")]));
    let get = async |partition| client.get(URL).partition(partition).send().await.unwrap().attempts();
    for attempts in [1, 0] {
        assert_eq!((get("").await, get("a").await, get("b").await), (attempts, attempts, attempts));
    }
    client.put(URL).partition("a").send().await.unwrap();
    assert_eq!((get("").await, get("a").await, get("b").await), (1, 1, 1));
    assert_eq!(server.count(), 7);
}
