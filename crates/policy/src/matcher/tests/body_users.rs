//! Rules that count the user that a body names.

use super::*;
use crate::facts::BodyFacts;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Counts the user that the body of a login names.
fn login(scope: &str, rest: &str) -> Matcher {
    matcher(&format!(
        "clients: {{ user: {{ header: X-User }}, identify_by: [user, ip], ip: {{ trusted_proxies: [65.0.0.0/8] }} }}\n\
         rate_limits:\n  default: {{ requests: 5, window: 1m }}\n  rules:\n    \
         - {{ name: login, match: {{ method: POST, path: /login }}, {scope}, user: {{ body: name }}, requests: 5, window: 1m{rest} }}\n    \
         - {{ name: after, per: user, requests: 5, window: 1m }}\n"
    ))
}

/// The clients that each rule counts, and whether a violation locks them out.
fn counted(matcher: &Matcher, lines: &[(&str, &str)], body: BodyFacts<'_>) -> Vec<String> {
    let headers = headers(lines);
    let peer = [65, 66, 67, 68].into();
    let facts =
        Facts { method: "POST", host: Some("a.example"), path: "/login", headers: &headers, peer, body };
    let mut scratch = Scratch::default();
    assert!(matcher.reads_body(&facts, &mut scratch));
    let Admission::Checked(verdict) = matcher.admit(&facts, None, Timestamp::ZERO, &mut scratch) else {
        panic!("it is neither exempt nor banned")
    };
    let checks = verdict.checks().iter().zip(verdict.rules()).enumerate();
    let text = checks.map(|(at, (check, rule))| {
        let client = crate::ClientName::from_key(check.key.client);
        let penalty = if verdict.caused_penalty(at).is_some() { " !" } else { "" };
        format!("{} {client}{penalty}", rule.name)
    });
    text.collect()
}

#[test]
fn rule_counts_the_user_of_the_body_and_the_address_and_other_rules_do_not() {
    let (body, proxied) = (BodyFacts::Complete(b"name=Eve"), [FORM, ("x-user", "bob")]);
    let others = ["default user:bob", "after user:bob"].map(str::to_owned);
    let of_login = |scope: &str| {
        let all = counted(&login(scope, ""), &proxied, body);
        assert_eq!([&all[0], all.last().unwrap()], [&others[0], &others[1]]);
        all[1..all.len() - 1].to_vec()
    };
    assert_eq!(of_login("per_each: [ip, user]"), ["login ip:65.66.67.68", "login user:eve"]);
    assert_eq!(of_login("per: user"), ["login user:eve", "login ip:65.66.67.68"]);
    assert_eq!(of_login("per: [ip, user]"), ["login ip:65.66.67.68+user:eve", "login ip:65.66.67.68"]);
}

#[test]
fn request_without_the_field_is_counted_without_it_and_an_unreadable_one_with_all_others() {
    let matcher = login("per_each: [ip, user]", "");
    let of_login = |body| counted(&matcher, &[FORM, ("x-user", "bob")], body)[1..3].to_vec();
    for body in
        [BodyFacts::Unknown, BodyFacts::Complete(b""), BodyFacts::Complete(b"a=b"), BodyFacts::User(" ")]
    {
        assert_eq!(of_login(body), ["login ip:65.66.67.68", "login user:bob"], "{body:?}");
    }
    for body in [BodyFacts::Incomplete, BodyFacts::Complete(b"name=a&name=b"), BodyFacts::Complete(b"{}")] {
        assert_eq!(of_login(body), ["login ip:65.66.67.68", "login anonymous"], "{body:?}");
    }
    assert_eq!(of_login(BodyFacts::User("Bob")), ["login ip:65.66.67.68", "login user:bob"]);
    // Without a user in the head either, the address is counted once.
    assert_eq!(
        counted(&matcher, &[FORM], BodyFacts::Complete(b"a=b"))[1..],
        ["login ip:65.66.67.68", "after ip:65.66.67.68"]
    );
}

#[test]
fn user_of_a_body_is_never_locked_out() {
    let penalty = ", penalty: { after: 1, for: 1m }";
    let of_login = |scope: &str, body| {
        let policy = login(scope, penalty).plan().clone();
        counted(&Matcher::new(policy), &[FORM], BodyFacts::Complete(body))
            .into_iter()
            .filter(|check| check.starts_with("login"))
            .collect::<Vec<_>>()
    };
    assert_eq!(of_login("per: user", b"name=eve"), ["login user:eve", "login ip:65.66.67.68"]);
    assert_eq!(of_login("per: user", b"name=a&name=b"), ["login anonymous", "login ip:65.66.67.68"]);
    // The address of a client, which is not a proxy, is.
    let matcher = login("per: user", penalty);
    let sent = [FORM, ("x-forwarded-for", "192.0.2.7")];
    let checks = counted(&matcher, &sent, BodyFacts::Complete(b"name=eve"));
    assert_eq!(checks[1..3], ["login user:eve", "login ip:192.0.2.7 !"]);
}

#[test]
fn body_is_read_only_where_a_rule_needs_it() {
    let matcher = login("per: user", "");
    let headers = HeaderMap::new();
    let reads = |method, path| {
        let (host, peer, body) = (Some("a.example"), [192, 0, 2, 1].into(), BodyFacts::Unknown);
        matcher
            .reads_body(&Facts { method, host, path, headers: &headers, peer, body }, &mut Scratch::default())
    };
    for (method, path) in
        [("POST", "/login"), ("POST", "/LOGIN"), ("POST", "/login/"), ("POST", "/login;x=1")]
    {
        assert!(reads(method, path), "{method} {path}");
    }
    for (method, path) in
        [("GET", "/login"), ("PUT", "/login"), ("POST", "/"), ("POST", "/login/x"), ("POST", "/log")]
    {
        assert!(!reads(method, path), "{method} {path}");
    }
}
