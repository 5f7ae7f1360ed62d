//! A rejection by a limit of the upstream keeps the upstream's headers.

use http::Response;
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::{HttpServer, full};

use crate::fixture::TestGateway;

const POLICY: &str = "headers: [x_ratelimit, ratelimit, ratelimit_delta]\n\
                      rate_limits: { default: { requests: 100, window: 1m } }\n";

async fn response_to(status: u16, headers: &'static [(&'static str, &'static str)]) -> CollectedResponse {
    let upstream = HttpServer::start(move |_| async move {
        let response = Response::builder().status(status);
        let response =
            headers.iter().fold(response, |response, (name, value)| response.header(*name, *value));
        response.body(full("upstream")).unwrap()
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], POLICY);
    gateway.get("/").await
}

fn limit_headers(response: &CollectedResponse) -> Vec<(&str, &str)> {
    let all = response.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let mut limits: Vec<_> =
        all.filter(|(name, _)| name.contains("ratelimit") || *name == "retry-after").collect();
    limits.sort_unstable();
    limits
}

#[tokio::test]
async fn upstream_429_or_503_with_own_limit_headers_keeps_them_unmixed() {
    let own: [&'static [(&'static str, &'static str)]; 4] = [
        &[("retry-after", "7")],
        &[("ratelimit", "\"theirs\";r=0;t=7"), ("ratelimit-policy", "\"theirs\";q=1;w=7")],
        &[("x-ratelimit-limit", "1"), ("x-ratelimit-remaining", "0")],
        &[("ratelimit-limit", "1"), ("ratelimit-reset", "7")],
    ];
    for status in [429, 503] {
        for headers in own {
            let response = response_to(status, headers).await;
            assert_eq!((response.status.as_u16(), response.text()), (status, "upstream"));
            assert_eq!(limit_headers(&response), headers);
        }
    }
}

#[tokio::test]
async fn upstream_response_of_another_status_has_its_limit_headers_replaced() {
    for status in [200, 404, 500] {
        let response =
            response_to(status, &[("x-ratelimit-limit", "1"), ("x-ratelimit-remaining", "0")]).await;
        assert_eq!(
            (response.number("x-ratelimit-limit"), response.number("x-ratelimit-remaining")),
            (100, 99)
        );
    }
}

#[tokio::test]
async fn upstream_429_without_limit_headers_gets_those_of_the_gateway() {
    assert_eq!(response_to(429, &[]).await.number("x-ratelimit-remaining"), 99);
}
