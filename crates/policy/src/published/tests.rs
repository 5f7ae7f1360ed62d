use crate::{NoFiles, compile, published_limits};

const POLICY: &[u8] = b"
clients: { api_key: { verify: none }, user: { header: X-User }, ip: { trusted_proxies: [192.0.2.1] } }
upstreams: { api: { servers: ['http://127.0.0.1:1'] } }
routes: [{ path: /**, upstream: api }]
rate_limits:
  global: { requests: 1000, window: 1s }
  default: { requests: 100, window: 1m, algorithm: token_bucket, burst: 20 }
  tiers: { pro: { requests: 1000, window: 1m, on_exceed: { cached: { for: 60s } } }, staff: unlimited }
  endpoints:
    POST /orders: { requests: 10, window: 1h, status: 503 }
  rules:
    - { name: hidden, requests: 1, window: 1d, report: off }
    - { name: tried, requests: 1, window: 1d, mode: shadow }
    - { name: some, requests: 1, window: 1d, mode: { canary: 10% } }
    - { name: login, match: { method: [POST], path: [/login, /signin], header: { X-Secret-Plan: a } }, per: [ip, user], requests: 5, window: 500ms }
    - { name: upload, match: { path: /upload }, per: everybody, requests: 100, window: 1h, cost: { body: 1KiB } }
    - { name: exports, match: { path: /export }, per: [user], concurrent: 2 }
";

#[test]
fn limits_that_clients_have_to_know_are_published_as_markdown() {
    let plan = compile("policy.yaml", POLICY, &NoFiles).unwrap_or_else(|problems| panic!("{problems}")).plan;
    let text = published_limits(&plan).to_string();
    let expected = "\
| limit | requests | for each | units | beyond it |
|---|---|---|---|---|
| global | all | all clients together | 1000 requests per 1s | 429 |
| default | all | client | 100 requests per 1m, at most 20 at once | 429 |
| tier:pro | all | client of the tier `pro` | 1000 requests per 1m | a stored response, or 429 |
| login | POST /login, /signin, some | ip and user | 5 requests per 500ms | 429 |
| upload | /upload | all clients together | 100 times 1KiB of content per 1h | 429 |
| endpoint:POST /orders | POST /orders | client | 10 requests per 1h | 503 |
| exports | /export | user | 2 concurrent requests | 429 |

Clients of the tier `staff` have no limit of their own.
";
    assert_eq!(text, expected);
    assert!(!text.contains("Secret"));
}

#[test]
fn published_limits_are_json_for_programs() {
    let plan = compile("policy.yaml", POLICY, &NoFiles).unwrap().plan;
    let json = serde_json::to_value(published_limits(&plan)).unwrap();
    assert_eq!(json["unlimited_tiers"], serde_json::json!(["staff"]));
    assert_eq!(
        json["limits"][3],
        serde_json::json!({
            "name": "login", "methods": ["POST"], "paths": ["/login", "/signin"], "is_conditional": true,
            "per": "ip and user", "units": 5, "unit": "requests", "window": 0.5, "burst": null, "beyond": "429",
        })
    );
}
