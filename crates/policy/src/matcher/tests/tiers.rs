//! The tier of a client: of its API key, of its token, or of a header.

use std::collections::BTreeMap;

use http::{Uri, Version};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::*;
use crate::request::{HeaderTraits, ReadOptions, RequestHead};

const SECRET: &[u8] = b"a secret that is long enough for HS256";
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const CLAIM: &str = "user: { jwt: { secret_file: jwt.secret } }, tiers: { file: keys.csv, claim: plan }";
const HEADER: &str = "tiers: { file: keys.csv, header: X-Plan }";

/// The limit of the client, `default` or that of its tier, or why the request is rejected. The policy trusts 10.0.0.0/8.
fn limit(clients: &str, peer: [u8; 4], lines: &[(&str, &str)]) -> String {
    let policy = format!(
        "clients: {{ {clients}, identify_by: [user, api_key, ip], ip: {{ trusted_proxies: [10.0.0.0/8] }} }}\n\
         rate_limits:\n  default: {{ requests: 5, window: 1m }}\n  tiers:\n    free: {{ requests: 5, window: 1m }}\n    \
         paid: {{ requests: 5, window: 1m }}\n    \"7\": {{ requests: 5, window: 1m }}\n"
    );
    let policy = policy.replace(
        "identify_by: [user, ",
        if clients == CLAIM { "identify_by: [user, " } else { "identify_by: [" },
    );
    let files: BTreeMap<_, _> = [("jwt.secret", SECRET), ("keys.csv", b"listed,free\n")]
        .map(|(name, bytes)| (name.to_owned(), bytes.to_vec()))
        .into();
    let compiled = crate::compile("policy.yaml", policy.as_bytes(), &files);
    let active = ActivePolicy::new(compiled.unwrap_or_else(|problems| panic!("{problems}")).plan);
    let (mut headers, uri) = (headers(lines), Uri::from_static("http://example.org/"));
    let traits = HeaderTraits::trim_and_scan(&mut headers);
    let version = Some(Version::HTTP_11);
    headers.insert("host", "example.org".parse().unwrap());
    let head =
        RequestHead { method: "GET", uri: &uri, version, headers: &mut headers, traits, peer: peer.into() };
    let directory = active.directory.as_deref();
    let options = ReadOptions { directory, needs_route: false, removes_headers: true };
    let read = match active.matcher.read(head, options, || NOW) {
        Ok(read) => read,
        Err(error) => return error.to_string(),
    };
    let mut scratch = Scratch::default();
    match active.matcher.admit(&read.facts(), directory, NOW, &mut scratch) {
        Admission::Checked(matched) => matched.rules().next().unwrap().name.clone(),
        other => panic!("{other:?}"),
    }
}

fn token(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

/// A token of alice, valid now, with this plan.
fn with_plan(plan: &Value) -> String {
    token(&json!({ "sub": "alice", "exp": 1_800_000_600, "plan": plan }))
}

fn by_token(token: &str) -> String {
    limit(CLAIM, [192, 0, 2, 1], &[("authorization", &format!("Bearer {token}"))])
}

#[test]
fn tier_of_a_token_that_is_valid_now_counts_and_that_of_a_key_takes_precedence() {
    let paid = with_plan(&json!("paid"));
    assert_eq!(by_token(&paid), "tier:paid");
    assert_eq!(by_token(&with_plan(&json!(7))), "tier:7", "a whole number is a name");
    let both = [("authorization", paid.as_str()), ("x-api-key", "listed")];
    assert_eq!(limit(CLAIM, [192, 0, 2, 1], &both), "tier:free");
    let unlisted = [("authorization", paid.as_str()), ("x-api-key", "unlisted")];
    assert_eq!(limit(CLAIM, [192, 0, 2, 1], &unlisted), "tier:paid");
}

#[test]
fn token_without_a_usable_claim_grants_no_tier() {
    for plan in [json!(["paid"]), json!({ "paid": true }), json!(true), json!(null), json!(1.5), json!("")] {
        assert_eq!(by_token(&with_plan(&plan)), "default", "{plan}");
    }
    for plan in ["Paid", "paid ", "gold", "tier:paid"] {
        assert_eq!(by_token(&with_plan(&json!(plan))), "default", "{plan}");
    }
    assert_eq!(by_token(&token(&json!({ "sub": "alice", "exp": 1_800_000_600, "Plan": "paid" }))), "default");
}

#[test]
fn token_that_is_not_valid_now_or_not_verified_grants_no_tier() {
    let expired = token(&json!({ "sub": "alice", "exp": 7, "plan": "paid" }));
    let endless = token(&json!({ "sub": "alice", "plan": "paid" }));
    let early = token(&json!({ "sub": "alice", "exp": 1_900_000_000, "nbf": 1_800_900_000, "plan": "paid" }));
    for token in [&expired, &endless, &early] {
        assert_eq!(by_token(token), "default", "{token}");
    }
    let other_key = EncodingKey::from_secret(b"another secret that is long enough");
    let claims = json!({ "sub": "alice", "exp": 1_800_000_600, "plan": "paid" });
    let forged = encode(&Header::default(), &claims, &other_key).unwrap();
    assert_eq!(by_token(&forged), "default");
    let paid = with_plan(&json!("paid"));
    let (_, payload) = paid.split_once('.').unwrap();
    let payload = payload.split_once('.').unwrap().0;
    // {"alg":"none"} and {"alg":"None","typ":"JWT"}
    for header in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJOb25lIiwidHlwIjoiSldUIn0"] {
        for signature in ["", "x", paid.rsplit_once('.').unwrap().1] {
            assert_eq!(
                by_token(&format!("{header}.{payload}.{signature}")),
                "default",
                "{header} {signature}"
            );
        }
    }
}

#[test]
fn tokens_with_different_tiers_are_rejected_and_one_that_is_not_valid_grants_none() {
    let [paid, free] = ["paid", "free"].map(|plan| with_plan(&json!(plan)));
    let different =
        "the tokens in header `authorization` name different users, tenants or tiers; send one token";
    for value in [format!("{paid}, {free}"), format!("{free} {paid}")] {
        assert_eq!(by_token(&value), different);
    }
    assert_eq!(by_token(&format!("{paid}, {paid}")), "tier:paid");
    // A service may read either token.
    let old = token(&json!({ "sub": "alice", "exp": 7, "plan": "paid" }));
    let plain = token(&json!({ "sub": "alice", "exp": 1_800_000_600 }));
    assert_eq!(by_token(&format!("{plain}, {old}")), "default");
    let forged = format!("{}x", &paid[..paid.len() - 4]);
    assert_eq!(by_token(&format!("{paid}, {forged}")), "default");
    let twice = [("authorization", paid.as_str()), ("authorization", free.as_str())];
    assert_eq!(limit(CLAIM, [192, 0, 2, 1], &twice), "duplicate header `authorization`; send it once");
}

#[test]
fn tier_of_the_tenant_token_counts_if_the_user_has_none() {
    let clients = "user: { header: X-User }, tenant: { jwt: { claim: org, secret_file: jwt.secret, header: X-Token } }, tiers: { claim: plan }";
    let paid = token(&json!({ "org": "acme", "exp": 1_800_000_600, "plan": "paid" }));
    assert_eq!(limit(clients, [192, 0, 2, 1], &[("x-token", &paid)]), "tier:paid");
    assert_eq!(limit(clients, [192, 0, 2, 1], &[("authorization", &paid)]), "default");
}

#[test]
fn tier_of_a_header_counts_only_from_a_trusted_proxy() {
    let proxy = |lines: &[(&str, &str)]| limit(HEADER, [10, 0, 0, 1], lines);
    assert_eq!(proxy(&[("x-plan", "paid")]), "tier:paid");
    assert_eq!(proxy(&[("X-PLAN", " paid ")]), "tier:paid");
    assert_eq!(proxy(&[("x-plan", "paid"), ("x-api-key", "listed")]), "tier:free");
    for name in ["Paid", "gold", "paid,free", "", "\"paid\""] {
        assert_eq!(proxy(&[("x-plan", name)]), "default", "{name}");
    }
    for spelling in ["x_plan", "x.plan", "X_Plan"] {
        assert_eq!(proxy(&[(spelling, "paid")]), "default", "{spelling}");
    }
    assert_eq!(proxy(&[("x-plan", "paid"), ("X-Plan", "paid")]), "duplicate header `x-plan`; send it once");
    assert!(proxy(&[("x-plan", "paid"), ("connection", "X-Plan")]).starts_with("`Connection` lists"));
    assert_eq!(limit(HEADER, [192, 0, 2, 1], &[("x-plan", "paid")]), "default");
    assert_eq!(
        limit(HEADER, [192, 0, 2, 1], &[("x-plan", "paid"), ("x-forwarded-for", "10.0.0.1")]),
        "default"
    );
}
