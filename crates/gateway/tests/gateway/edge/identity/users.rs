//! Users and tenants that a header names are accepted from trusted proxies only.

use tidegate_testkit::server::RecordingServer;

use super::{over_both, over_http1};
use crate::fixture::{TestGateway, hourly, policy_before};

const LINES: [(&str, &str); 2] = [("x-user", "ann"), ("x-tenant", "acme")];

/// A gateway that counts by user and tenant and trusts the proxy at this address.
fn gateway(upstream: &RecordingServer, proxy: &str, rules: &str) -> TestGateway {
    let more = format!(
        "clients: {{ identify_by: [user, ip], user: {{ header: X-User }}, tenant: {{ header: X-Tenant }}, \
         ip: {{ trusted_proxies: {proxy} }} }}\nrate_limits: {{ default: {{ {} }}{rules} }}",
        hourly(100)
    );
    TestGateway::with_files(&policy_before(&[upstream], &more), &[])
}

#[tokio::test]
async fn user_header_of_untrusted_peer_is_ignored_and_not_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, "192.0.2.0/24", "");
    let mut remaining = 100;
    for user in ["ann", "bob", "carol"] {
        for response in over_both(&gateway, &[("x-user", user), ("x-tenant", user)]).await {
            remaining -= 1;
            assert_eq!(
                (response.status, response.remaining()),
                (200, remaining),
                "{user} is counted by address"
            );
            let seen = upstream.last();
            assert_eq!((seen.header("x-user"), seen.header("x-tenant")), (None, None));
        }
    }
    gateway.ban("user:ann");
    assert_eq!(
        over_http1(&gateway, &LINES).await.status,
        200,
        "a header of an untrusted peer does not name the user"
    );
}

#[tokio::test]
async fn user_header_of_trusted_proxy_names_the_client_and_is_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, "127.0.0.1", "");
    for (response, remaining) in over_both(&gateway, &LINES).await.iter().zip([99, 98]) {
        assert_eq!(response.remaining(), remaining);
        let seen = upstream.last();
        assert_eq!((seen.header("x-user"), seen.header("x-tenant")), (Some("ann"), Some("acme")));
    }
    assert_eq!(over_http1(&gateway, &[("x-user", "bob")]).await.remaining(), 99);
    gateway.ban("tenant:acme");
    assert_eq!(over_http1(&gateway, &LINES).await.status, 403);
}

#[tokio::test]
async fn rules_do_not_see_user_header_of_untrusted_peer() {
    let rules = ", rules: [\
        { name: by-user, match: { when: \"client.user == 'ann' || client.tenant == 'acme'\" }, requests: 1, window: 1h },\
        { name: by-header, match: { when: \"'x-user' in request.headers\" }, requests: 2, window: 1h },\
        { name: by-match, match: { header: { X-User: ann } }, requests: 3, window: 1h }]";
    let upstream = RecordingServer::start().await;
    let untrusted = gateway(&upstream, "192.0.2.0/24", rules);
    for response in over_both(&untrusted, &LINES).await {
        assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, Some("100")));
    }
    let trusted = gateway(&upstream, "127.0.0.1", rules);
    assert_eq!(over_http1(&trusted, &LINES).await.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(over_http1(&trusted, &LINES).await.status, 429);
}
