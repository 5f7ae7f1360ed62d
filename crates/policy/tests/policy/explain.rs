//! Explanations of requests to the example policies, as snapshots.

use std::borrow::Cow;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderName};
use tidegate_core::Timestamp;
use tidegate_policy::{ExplainRequest, Explanation, FileError, Files, Matcher, compile, explain};

struct ExampleFiles(PathBuf);

impl Files for ExampleFiles {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        fs::read(self.0.join(name)).map(Cow::Owned).map_err(|_| FileError::Missing)
    }
}

fn explain_example(policy: &str, request: &str, lines: &[(&str, &str)]) -> Explanation {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let bytes = fs::read(folder.join(policy)).unwrap();
    let plan =
        compile(policy, &bytes, &ExampleFiles(folder)).unwrap_or_else(|problems| panic!("{problems}")).plan;
    let parts: Vec<_> = request.split(' ').collect();
    let line = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    let headers: HeaderMap = std::iter::once(&("host", parts[1])).chain(lines).map(line).collect();
    let peer: IpAddr = parts[3].parse().unwrap();
    let request = ExplainRequest {
        method: parts[0],
        target: parts[2],
        headers: &headers,
        peer,
        body: tidegate_policy::BodyFacts::Complete(&[]),
    };
    let matcher = Matcher::new(plan);
    let directory = matcher.plan().directory.clone();
    explain(&matcher, &request, directory.as_deref(), Timestamp::from_secs(1_800_000_000))
}

/// A policy, a request (method, host, path, peer) and its headers.
type RequestCase<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

fn explanations(requests: &[RequestCase<'_>]) -> String {
    let texts =
        requests.iter().map(|(policy, request, lines)| explain_example(policy, request, lines).to_string());
    texts.collect::<Vec<_>>().join("\n")
}

#[test]
fn small_api_is_explained() {
    let policy = "small-api.yaml";
    insta::assert_snapshot!(explanations(&[
        (policy, "POST example.org /api/v1/upload 192.0.2.1", &[]),
        (policy, "GET example.org /api/v1/search 192.0.2.1", &[("x-api-key", "key_of_somebody")]),
    ]));
}

#[test]
fn saas_tiers_are_explained() {
    let policy = "saas-tiers.yaml";
    insta::assert_snapshot!(explanations(&[
        (policy, "GET api.example.com /v1/reports/7/download 192.0.2.1", &[("x-api-key", "pk_live_4f9a")]),
        (policy, "GET api.example.com / 192.0.2.1", &[("x-api-key", "pk_ops_0001")]),
        (policy, "GET api.example.com / 192.0.2.1", &[("x-api-key", "invented")]),
        (policy, "GET api.example.com / 10.0.0.9", &[("x-forwarded-for", "10.1.2.3")]),
        (policy, "GET other.example.com / 10.0.0.9", &[("x-forwarded-for", "10.1.2.3")]),
        (policy, "GET API.example.com. /V1/Reports;x 192.0.2.1", &[]),
    ]));
}

#[test]
fn login_protection_is_explained() {
    let policy = "login-protection.yaml";
    let forwarded = ("x-forwarded-for", "192.0.2.1");
    insta::assert_snapshot!(explanations(&[
        (
            policy,
            "POST example.org /login 10.0.0.9",
            &[forwarded, ("x-login-name", "ann"), ("user-agent", "curl")]
        ),
        (policy, "POST example.org /login 192.0.2.1", &[("x-login-name", "ann"), ("user-agent", "curl")]),
        (policy, "POST example.org /login 2001:db8:1:2:3::4", &[]),
        (policy, "GET example.org / 203.0.113.9", &[]),
    ]));
}

#[test]
fn llm_costs_are_explained() {
    let policy = "llm-costs.yaml";
    let key = ("x-api-key", "pk_live_81cc");
    insta::assert_snapshot!(explanations(&[
        (policy, "POST example.org /v1/completions 192.0.2.1", &[key, ("x-estimated-tokens", "1200")]),
        (policy, "POST example.org /v1/completions 192.0.2.1", &[key, ("x-estimated-tokens", "50000")]),
        (policy, "GET example.org /v1/images/1 192.0.2.1", &[]),
    ]));
}

#[test]
fn multi_tenant_platform_is_explained() {
    let policy = "multi-tenant.yaml";
    insta::assert_snapshot!(explanations(&[
        (policy, "GET acme.example.com /search 192.0.2.1", &[("authorization", "Bearer forged")]),
        (policy, "GET acme.example.com /files/7/versions/2 192.0.2.1", &[]),
    ]));
}

#[test]
fn rollout_is_explained() {
    let policy = "rollout.yaml";
    insta::assert_snapshot!(explanations(&[
        (policy, "GET example.org /search 192.0.2.18", &[]),
        (policy, "GET example.org /search 192.0.2.1", &[]),
        (policy, "POST example.org /files/a 192.0.2.1", &[("content-length", "5000")]),
        (policy, "GET example.org /export 192.0.2.1", &[]),
    ]));
}

#[test]
fn resilience_is_explained() {
    let policy = "resilience.yaml";
    insta::assert_snapshot!(explanations(&[
        (policy, "GET example.org /api/orders/7 192.0.2.1", &[]),
        (policy, "GET example.org / 192.0.2.1", &[]),
    ]));
}

#[test]
fn ambiguous_headers_are_explained_as_status_400() {
    let twice = [("x-api-key", "a"), ("x-api-key", "b")];
    let requests: [&[(&str, &str)]; 3] =
        [&twice, &[("x-api-key", "a,b")], &[("connection", "close, X-API-Key"), ("x-api-key", "a")]];
    let request = "GET example.org / 192.0.2.1";
    for lines in requests {
        let explanation = explain_example("small-api.yaml", request, lines);
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["verdict"]["is"], "rejected", "{lines:?}");
        assert!(explanation.to_string().contains("verdict   400: "), "{explanation}");
        assert!(explanation.to_string().contains("`x-api-key`"), "{explanation}");
    }
}

#[test]
fn json_has_the_same_content_as_text() {
    let explanation = explain_example("small-api.yaml", "GET example.org /api/v1/search 192.0.2.1", &[]);
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["verdict"]["is"], "admitted");
    assert_eq!(json["rules"][1]["name"], "endpoint:/api/v1/search");
    assert_eq!(json["rules"][1]["outcome"]["remaining"], 9);
    assert_eq!(json["route"]["upstream"], "api");
    assert_eq!(json["tightest"], 1);
}
