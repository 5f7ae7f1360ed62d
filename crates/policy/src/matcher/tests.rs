use http::{HeaderMap, HeaderName};
use tidegate_core::{Decision, Outcome, Role, TimeSpan, Timestamp, Verdict};

use super::*;
use crate::facts::Facts;
use crate::files::NoFiles;
use crate::path::PathError;

mod body_users;
mod credentials;
mod readings;
mod tiers;

fn matcher(policy: &str) -> Matcher {
    let compiled = crate::compile("policy.yaml", policy.as_bytes(), &NoFiles);
    Matcher::new(compiled.unwrap_or_else(|problems| panic!("{problems}")).plan)
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    lines.iter().map(line).collect()
}

/// Each check as `rule key cost`; non-printable bytes of the key are dots.
fn checks(matcher: &Matcher, request: &str, lines: &[(&str, &str)]) -> Vec<String> {
    with_admission(matcher, request, lines, |admission| match admission {
        Admission::Exempt { why } => vec![format!("{why:?}")],
        Admission::Banned { by: BanSource::Policy(network) } => vec![format!("banned {network}")],
        Admission::Banned { by: BanSource::NotAllowed } => vec!["not allowed".to_owned()],
        Admission::Banned { by: BanSource::Operator(ban) } => vec![format!("banned {}", ban.subject)],
        Admission::Checked(matched_request) => {
            let lines = matched_request.checks().iter().zip(matched_request.rules()).map(|(check, rule)| {
                assert_eq!(check.key.rule, rule.id);
                let key: String = check
                    .key
                    .client
                    .iter()
                    .map(|byte| match byte {
                        byte if byte.is_ascii_graphic() => char::from(*byte),
                        _ => '.',
                    })
                    .collect();
                format!("{} {key} {}", rule.name, check.cost.get())
            });
            lines.collect()
        }
    })
}

fn with_admission<R>(
    matcher: &Matcher,
    request: &str,
    lines: &[(&str, &str)],
    read: impl FnOnce(&Admission<'_, '_>) -> R,
) -> R {
    let (method, path) = request.split_once(' ').unwrap();
    let headers = headers(lines);
    let facts = Facts {
        method,
        host: Some("example.org"),
        path,
        headers: &headers,
        peer: [65, 66, 67, 68].into(),
        body: crate::BodyFacts::Unknown,
    };
    let mut scratch = Scratch::default();
    let directory = matcher.plan().directory.clone();
    read(&matcher.admit(&facts, directory.as_deref(), Timestamp::ZERO, &mut scratch))
}

const ORDER: &str = "
clients:
  api_key: { verify: none }
  tenant: { header: X-Tenant }
  ip: { trusted_proxies: [65.66.67.68] }
rate_limits:
  endpoints: { /a: { requests: 1, window: 1 }, POST /a: { requests: 2, window: 1 } }
  rules:
    - { name: second, match: { path: /a }, per: ip, requests: 3, window: 1 }
    - { name: all, per: everybody, requests: 9, window: 1, cost: 3 }
    - { name: elsewhere, match: { path: /b }, requests: 3, window: 1 }
    - { name: twice, match: { path: [/a, '/*'], method: POST }, requests: 3, window: 1 }
  default: { requests: 5, window: 1 }
  tenant: { requests: 6, window: 1 }
  global: { requests: 7, window: 1 }
";

#[test]
fn rule_for_get_applies_to_head() {
    let matcher = matcher(
        "rate_limits: { rules: [{ name: reads, match: { method: GET }, per: everybody, requests: 3, window: 1 }] }",
    );
    assert_eq!(checks(&matcher, "HEAD /a", &[]), checks(&matcher, "GET /a", &[]));
    assert_eq!(checks(&matcher, "GET /a", &[]).len(), 1);
    assert!(checks(&matcher, "POST /a", &[]).is_empty());
}

#[test]
fn condition_on_the_host_applies_to_the_host_that_a_proxy_reports() {
    let matcher = matcher(
        "
rate_limits:
  rules: [{ name: admin, match: { when: 'request.host == \"admin.example.org\" && request.path == \"/a\"' }, requests: 1, window: 1 }]
",
    );
    let count = |reported: &str| checks(&matcher, "GET /A", &[("x-forwarded-host", reported)]).len();
    for reported in
        ["admin.example.org", "Admin.example.org.:443", "a, admin.example.org", "a@b, admin.example.org"]
    {
        assert_eq!(count(reported), 1, "{reported}");
    }
    assert_eq!(count("other.example.org"), 0);
}

#[test]
fn condition_on_the_method_get_applies_to_head() {
    let matcher = matcher(
        "
rate_limits:
  rules:
    - { name: get, match: { when: 'request.method == \"GET\"' }, requests: 1, window: 1 }
    - { name: path, match: { when: 'request.method == \"GET\" && request.path == \"/a\"' }, requests: 1, window: 1 }
    - { name: other, match: { when: 'request.method != \"GET\"' }, requests: 1, window: 1 }
",
    );
    for (request, expected) in [("GET /a", "get path"), ("HEAD /A;x", "get path other"), ("POST /a", "other")]
    {
        let found: Vec<_> = checks(&matcher, request, &[])
            .iter()
            .filter_map(|check| check.split(' ').next().map(str::to_owned))
            .collect();
        assert_eq!(found.join(" "), expected, "{request}");
    }
}

#[test]
fn checks_are_in_the_documented_order() {
    let matcher = matcher(ORDER);
    assert_eq!(
        checks(&matcher, "POST /a", &[("x-api-key", "me"), ("x-tenant", "acme")]),
        [
            "global  1",
            "tenant t....acme 1",
            "default k....me 1",
            "second a....ABCD 1",
            "all  3",
            "twice k....me 1",
            "endpoint:POST /a k....me 1",
        ]
    );
    assert_eq!(
        checks(&matcher, "GET /a/", &[]),
        [
            "global  1",
            "tenant a....ABCD 1",
            "default a....ABCD 1",
            "second a....ABCD 1",
            "all  3",
            "endpoint:/a a....ABCD 1"
        ]
    );
}

#[test]
fn request_without_identity_header_is_counted_as_its_client() {
    let matcher = matcher(
        "
clients: { identify_by: [api_key, ip], api_key: { verify: none }, user: { header: X-User }, ip: { trusted_proxies: [65.66.67.68] } }
rate_limits:
  rules:
    - { name: one, per: user, requests: 3, window: 1 }
    - { name: both, per: [ip, user], requests: 3, window: 1 }
    - { name: each, per_each: [ip, user, fingerprint, api_key], requests: 3, window: 1 }
",
    );
    assert_eq!(
        checks(&matcher, "GET /", &[("x-user", "ann"), ("x-api-key", "me")]),
        [
            "one u....ann 1",
            "both a....ABCDu....ann 1",
            "each a....ABCD 1",
            "each u....ann 1",
            "each k....me 1"
        ],
        "the client replaces the missing fingerprint, once"
    );
    assert_eq!(
        checks(&matcher, "GET /", &[]),
        ["one a....ABCD 1", "both a....ABCDa....ABCD 1", "each a....ABCD 1"]
    );
}

#[test]
fn cost_header_invalid_costs_the_whole_limit() {
    let matcher = matcher(
        "rate_limits: { rules: [{ name: r, per: everybody, cost: { header: X-Cost }, requests: 50, window: 1 }] }",
    );
    let cost = |lines: &[(&str, &str)]| checks(&matcher, "GET /", lines).concat();
    assert_eq!(cost(&[]), "r  1");
    assert_eq!(cost(&[("x-cost", "7")]), "r  7");
    assert_eq!(cost(&[("x-cost", "0")]), "r  1");
    assert_eq!(cost(&[("x-cost", "-7")]), "r  50");
    assert_eq!(cost(&[("x-cost", "7"), ("x-cost", "7")]), "r  50");
    assert_eq!(cost(&[("x-cost", "99999999999999999999")]), format!("r  {}", u64::MAX));
    with_admission(&matcher, "GET /", &[("x-cost", "51")], |admission| {
        let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
        let check = matched_request.checks()[0];
        let mut state = tidegate_core::CounterState::default();
        assert_eq!(check.limit.step(&mut state, Timestamp::ZERO, check.cost).verdict, Verdict::Never);
    });
}

#[test]
fn ban_overrides_exemption() {
    let matcher = matcher(
        "
clients: { ip: { trusted_proxies: [65.0.0.0/8] }, exempt: { networks: [10.0.0.0/8] } }
bans: { networks: [10.1.0.0/16, 203.0.113.0/24] }
rate_limits: { default: { requests: 5, window: 1 } }
",
    );
    let from = |address| checks(&matcher, "GET /", &[("x-forwarded-for", address)]).concat();
    assert_eq!(from("10.1.2.3"), "banned 10.1.0.0/16");
    assert_eq!(from("10.2.2.3"), "Network(10.0.0.0/8)");
    assert!(from("192.0.2.1").starts_with("default"));
}

#[test]
fn client_outside_of_allow_is_rejected_before_exemptions_and_after_bans() {
    let matcher = matcher(
        "
clients: { ip: { trusted_proxies: [65.0.0.0/8] }, exempt: { networks: [10.2.0.0/16, 192.0.2.0/24] } }
bans: { networks: [10.1.0.0/16] }
allow: { networks: [10.0.0.0/8, 203.0.113.0/24, '2001:db8::7'] }
rate_limits: { default: { requests: 5, window: 1 } }
",
    );
    let from = |address| checks(&matcher, "GET /", &[("x-forwarded-for", address)]).concat();
    assert_eq!(from("10.1.2.3"), "banned 10.1.0.0/16");
    assert_eq!(from("10.2.2.3"), "Network(10.2.0.0/16)");
    for address in ["10.3.0.1", "203.0.113.9", "2001:db8::7", "::ffff:203.0.113.9"] {
        assert!(from(address).starts_with("default"), "{address}");
    }
    // A form of an address that any host could write does not prove that the client has it.
    for address in ["192.0.2.1", "203.0.112.9", "2001:db8::8", "64:ff9b::203.0.113.9", "2002:cb00:7109::1"] {
        assert_eq!(from(address), "not allowed", "{address}");
    }
    assert_eq!(checks(&matcher, "GET /", &[]).concat(), "not allowed", "the proxy itself");
}

#[test]
fn rule_with_failing_condition_applies_and_is_reported() {
    let matcher = matcher(
        "
rate_limits:
  rules:
    - { name: risky, match: { when: \"int(request.headers['x-n']) > 5\" }, requests: 5, window: 1 }
    - { name: sure, match: { when: request.method == 'GET', header: { X-N: ['*'] } }, requests: 5, window: 1 }
",
    );
    let applied = |value| {
        with_admission(&matcher, "GET /", &[("x-n", value)], |admission| {
            let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
            (
                matched_request.checks().len(),
                matched_request.failed_conditions().map(|rule| rule.name.clone()).collect::<Vec<_>>(),
            )
        })
    };
    assert_eq!(applied("7"), (2, vec![]));
    assert_eq!(applied("4"), (1, vec![]));
    assert_eq!(applied("x"), (2, vec!["risky".to_owned()]));
}

#[test]
fn tier_replaces_default_and_unlimited_tier_has_no_check() {
    struct Keys;
    impl crate::Files for Keys {
        fn read(&self, name: &str) -> Result<std::borrow::Cow<'_, [u8]>, crate::FileError> {
            assert_eq!(name, "keys.csv");
            Ok(b"key,tier\nk1,gold\nk2,staff\n".as_slice().into())
        }
    }
    let policy = b"
clients: { tiers: { file: keys.csv } }
rate_limits:
  default: { requests: 5, window: 1 }
  tiers: { gold: { requests: 50, window: 1 }, staff: unlimited }
";
    let active = ActivePolicy::new(crate::compile("policy.yaml", policy, &Keys).unwrap().plan);
    let rules_of = |active: &ActivePolicy, key| {
        let headers = headers(&[("x-api-key", key)]);
        let facts = Facts {
            method: "GET",
            host: Some(""),
            path: "/",
            headers: &headers,
            peer: [65, 66, 67, 68].into(),
            body: crate::BodyFacts::Unknown,
        };
        let mut scratch = Scratch::default();
        match active.matcher.admit(&facts, active.directory.as_deref(), Timestamp::ZERO, &mut scratch) {
            Admission::Checked(matched_request) => {
                matched_request.rules().map(|rule| rule.name.clone()).collect::<Vec<_>>().join(" ")
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rules_of(&active, "k1"), "tier:gold");
    assert_eq!(rules_of(&active, "k2"), "");
    assert_eq!(rules_of(&active, "invented"), "default", "an unknown key is counted by address");
}

#[test]
fn route_is_the_first_that_matches() {
    let matcher = matcher(
        "
upstreams: { a: { servers: ['http://a'] }, b: { servers: ['http://b'] }, c: { servers: ['http://c'] } }
routes:
  - { host: '*.example.org', path: /x/**, upstream: a }
  - { host: example.org, upstream: b }
  - { path: /x/y, upstream: c }
rate_limits: { default: { requests: 5, window: 1 } }
",
    );
    let upstream = |host, path| matcher.route(host, path).map(|route| route.upstream);
    assert_eq!(upstream("API.example.org", "/x/y"), Some(0));
    assert_eq!(upstream("Example.org", "/x/y"), Some(1));
    assert_eq!(upstream("other", "/x/y"), Some(2));
    assert_eq!(upstream(".example.org", "/z"), None);
}

#[test]
fn tightest_check_has_the_smallest_remaining_fraction() {
    let matcher = matcher(ORDER);
    with_admission(&matcher, "GET /nowhere", &[], |admission| {
        let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
        let outcome = |remaining, limit| Outcome::new(Verdict::PASS, limit, remaining, TimeSpan::ZERO);
        let decision = |outcomes: &[Outcome]| {
            Decision::new(Timestamp::ZERO, matched_request.checks(), outcomes.iter().copied().collect())
        };
        let outcomes = [outcome(50, 100), outcome(u64::MAX - 1, u64::MAX), outcome(1, 3), outcome(2, 6)];
        assert_eq!(matched_request.tightest(&decision(&outcomes)), Some(2));
        let rejected = Outcome { verdict: Verdict::Never, ..outcome(9, 10) };
        assert_eq!(
            matched_request.tightest(&decision(&[outcomes[0], rejected, outcomes[2], outcomes[3]])),
            Some(1)
        );
    });
}

#[test]
fn active_policy_and_plan_are_send_and_sync() {
    fn assert_shareable<T: Send + Sync + 'static>() {}
    assert_shareable::<ActivePolicy>();
    assert_shareable::<Plan>();
}

#[test]
fn shadow_mode_makes_every_kind_of_rule_advisory() {
    let matcher = matcher(
        "
clients: { tenant: { header: X-Tenant }, tiers: { default: free } }
rate_limits:
  global: { requests: 9, window: 1, mode: shadow }
  tenant: { requests: 9, window: 1, mode: shadow }
  tiers: { free: { requests: 9, window: 1, mode: shadow } }
  endpoints: { /a: { requests: 9, window: 1, mode: shadow } }
  rules:
    - { name: watching, requests: 9, window: 1, mode: shadow }
    - { name: binding, requests: 9, window: 1, mode: enforce }
",
    );
    with_admission(&matcher, "GET /a", &[], |admission| {
        let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
        let binding: Vec<_> = matched_request
            .checks()
            .iter()
            .zip(matched_request.rules())
            .map(|(check, rule)| (rule.name.as_str(), check.role))
            .collect();
        assert_eq!(
            binding,
            [
                ("global", Role::Advisory),
                ("tenant", Role::Advisory),
                ("tier:free", Role::Advisory),
                ("watching", Role::Advisory),
                ("binding", Role::Binding),
                ("endpoint:/a", Role::Advisory)
            ]
        );
        assert!(matched_request.has_enforced_check());
    });
}

#[test]
fn canary_chooses_the_same_clients_for_all_counters_of_a_rule() {
    let policy = "
clients: { api_key: { verify: none } }
rate_limits:
  global: { requests: 9, window: 1, mode: { canary: 10% } }
  rules: [{ name: each, per_each: [ip, fingerprint, api_key], requests: 9, window: 1, mode: { canary: 10% } }]
";
    let [before, restarted] = [matcher(policy), matcher(policy)];
    let is_enforced = |matcher: &Matcher, client: u32| {
        let lines = [("x-api-key", format!("key-{client}")), ("user-agent", "curl".to_owned())];
        let lines = lines.each_ref().map(|(name, value)| (*name, value.as_str()));
        with_admission(matcher, "GET /", &lines, |admission| {
            let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
            let roles: Vec<_> = matched_request.checks().iter().map(|check| check.role).collect();
            assert_eq!(roles.len(), 4);
            assert!(roles[2..].iter().all(|role| *role == roles[1]), "one rule, one role");
            (roles[0] == Role::Binding, roles[1] == Role::Binding)
        })
    };
    let slices: Vec<_> = (0..10_000).map(|client| is_enforced(&before, client)).collect();
    assert!((0..10_000).zip(&slices).all(|(client, slice)| is_enforced(&restarted, client) == *slice));
    for enforced in
        [slices.iter().filter(|slice| slice.0).count(), slices.iter().filter(|slice| slice.1).count()]
    {
        assert!((900..1_100).contains(&enforced), "{enforced} of 10,000");
    }
}

#[test]
fn concurrency_rules_are_separate_from_checks_and_keep_their_order() {
    let matcher = matcher(
        "
clients: { user: { header: X-User }, api_key: { verify: none }, ip: { trusted_proxies: [65.66.67.68] } }
rate_limits:
  endpoints: { /export: { requests: 9, window: 1 } }
  rules:
    - { name: exports, match: { path: /export }, per: user, concurrent: 2 }
    - { name: rate, match: { path: /export }, requests: 9, window: 1 }
    - { name: each, per_each: [ip, user, api_key], concurrent: 10, mode: shadow }
    - { name: elsewhere, match: { path: /import }, concurrent: 1 }
    - { name: posts, match: { method: POST }, per: everybody, concurrent: 1 }
",
    );
    assert_eq!(
        checks(&matcher, "GET /export", &[("x-user", "ann")]),
        ["rate a....ABCD 1", "endpoint:/export a....ABCD 1"]
    );
    with_admission(&matcher, "GET /export", &[("x-user", "ann")], |admission| {
        let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
        let checks: Vec<_> = matched_request
            .concurrency_checks()
            .map(|check| {
                let key =
                    String::from_utf8_lossy(check.key.client).replace(|c: char| !c.is_ascii_graphic(), ".");
                format!("{} {key} {} {:?}", check.rule.name, check.rule.concurrent, check.role)
            })
            .collect();
        assert_eq!(
            checks,
            ["exports u....ann 2 Binding", "each a....ABCD 10 Advisory", "each u....ann 10 Advisory"],
            "the address replaces the missing API key, once"
        );
    });
}

#[test]
fn body_cost_depends_on_length_and_unknown_length_is_settled_later() {
    let matcher =
        matcher("rate_limits: { rules: [{ name: r, cost: { body: 1KiB }, requests: 50, window: 1 }] }");
    let cost = |length: &str| checks(&matcher, "POST /", &[("content-length", length)]).concat();
    assert_eq!(cost("0"), "r a....ABCD 1");
    assert_eq!(cost("1024"), "r a....ABCD 1");
    assert_eq!(cost("1025"), "r a....ABCD 2");
    assert_eq!(cost("18446744073709551615"), format!("r a....ABCD {}", 1_u64 << 54));
    assert_eq!(checks(&matcher, "POST /", &[]), ["r a....ABCD 1"]);
    let open = |lines: &[(&str, &str)]| {
        with_admission(&matcher, "POST /", lines, |admission| {
            let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
            let decision = admitting(matched_request);
            let rules = matched_request.applied();
            let charged = rules.charged(&decision);
            charged.filter_map(|charged| Some(charged.settlement?.by_body(2_049))).collect::<Vec<_>>()
        })
    };
    assert_eq!(open(&[("content-length", "5")]), []);
    assert_eq!(open(&[("transfer-encoding", "chunked")]), [Some(tidegate_core::Cost::new(3))]);
}

/// The decision that admits every check.
fn admitting(matched_request: &MatchedRequest<'_>) -> Decision {
    let outcome = Outcome::new(Verdict::PASS, 9, 9, TimeSpan::ZERO);
    Decision::new(
        Timestamp::ZERO,
        matched_request.checks(),
        matched_request.checks().iter().map(|_| outcome).collect(),
    )
}

#[test]
fn response_settles_charged_checks() {
    use tidegate_core::Cost;
    let matcher = matcher(
        "
rate_limits:
  rules:
    - { name: login, requests: 5, window: 1, charge: { after: { status: [401, 5xx] } } }
    - { name: tokens, requests: 500, window: 1, cost: 100, charge: { after: { header: X-Used } } }
    - { name: plain, requests: 500, window: 1 }
",
    );
    with_admission(&matcher, "POST /", &[], |admission| {
        let Admission::Checked(matched_request) = admission else { panic!("{admission:?}") };
        let decision = admitting(matched_request);
        let settled = |status, lines: &[(&str, &str)]| {
            let headers = headers(lines);
            let rules = matched_request.applied();
            let charged = rules.charged(&decision);
            let settled = charged.filter_map(|charged| {
                let cost = charged.settlement?.by_response(charged.check.cost, status, &headers);
                Some(cost.map(Cost::get))
            });
            settled.collect::<Vec<_>>()
        };
        assert_eq!(settled(200, &[("x-used", "7")]), [Some(0), Some(7)]);
        assert_eq!(settled(401, &[("x-used", "700")]), [Some(1), Some(700)]);
        assert_eq!(settled(503, &[("x-used", "0")]), [Some(1), Some(0)]);
        assert_eq!(settled(403, &[]), [Some(0), None], "without the header the charge is kept");
        for garbage in ["", "-1", "1.5", "many", "9007199254740992", "99999999999999999999"] {
            assert_eq!(settled(200, &[("x-used", garbage)]), [Some(0), None], "{garbage}");
        }
        assert_eq!(settled(200, &[("x-used", "7"), ("x-used", "7")]), [Some(0), None]);
    });
}
