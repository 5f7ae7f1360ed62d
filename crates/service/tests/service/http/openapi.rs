//! The `OpenAPI` document says what the service does.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::POLICY;
use crate::fixture::TestService;

fn document() -> Value {
    TestService::start(POLICY).http("GET", "/openapi.json", "", "").json()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("not an object: {value}"))
}

/// Follows references into the document.
fn resolve<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap_or_else(|| panic!("no {reference}")),
        None => schema,
    }
}

/// Why `value` does not fit a schema, for the keywords that the document uses.
fn violation(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = resolve(document, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        let fitting = choices.iter().filter(|one| violation(document, one, value).is_none()).count();
        return (fitting != 1).then(|| format!("{fitting} of oneOf fit {value}"));
    }
    if schema.get("const").is_some_and(|constant| constant != value) {
        return Some(format!("{value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Some(format!("{value} is not one of {}", schema["enum"]));
    }
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_kind = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    };
    if !kinds.is_empty() && !kinds.iter().any(is_kind) {
        return Some(format!("{value} is not {kinds:?}"));
    }
    let length = value.as_str().map(str::len).or_else(|| value.as_array().map(Vec::len));
    let length = length.or_else(|| value.as_object().map(Map::len));
    let shortest =
        ["minLength", "minItems", "minProperties"].into_iter().find_map(|key| schema[key].as_u64());
    if length.is_some_and(|length| shortest.is_some_and(|shortest| (length as u64) < shortest)) {
        return Some(format!("{value} is too short"));
    }
    if value.as_f64().is_some_and(|value| schema["minimum"].as_f64().is_some_and(|smallest| value < smallest))
    {
        return Some(format!("{value} is too small"));
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(required).is_none() {
            return Some(format!("no {required} in {value}"));
        }
    }
    for item in value.as_array().into_iter().flatten() {
        if let Some(why) = schema.get("items").and_then(|items| violation(document, items, item)) {
            return Some(why);
        }
    }
    value.as_object().into_iter().flatten().find_map(|(name, member)| {
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(property), _) => violation(document, property, member),
            (None, Some(Value::Bool(false))) => Some(format!("unknown member {name} in {value}")),
            (None, Some(other)) => violation(document, other, member),
            (None, None) => None,
        }
    })
}

/// The statuses that an operation lists.
fn statuses(operation: &Value) -> BTreeSet<&str> {
    object(&operation["responses"]).keys().map(String::as_str).collect()
}

#[test]
fn openapi_every_example_is_valid_and_answered_as_documented() {
    let document = document();
    let mut sent = 0;
    for (path, item) in object(&document["paths"]) {
        let content = &item["post"]["requestBody"]["content"]["application/json"];
        let Some(examples) = content["examples"].as_object() else { continue };
        for (name, example) in examples {
            let body = &example["value"];
            assert_eq!(violation(&document, &content["schema"], body), None, "{path} {name}");
            let service = TestService::start(POLICY);
            let answer = service.post_json(path, &body.to_string(), 200);
            let schema = &item["post"]["responses"]["200"]["content"]["application/json"]["schema"];
            assert_eq!(violation(&document, schema, &answer), None, "{path} {name}: {answer}");
            sent += 1;
        }
    }
    assert!(sent >= 10, "{sent}");
}

#[test]
fn openapi_rejections_and_reservations_fit_their_schemas() {
    let document = document();
    let schema = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let service = TestService::start(POLICY);
    let rejected = service.post_json("/v1/check", r#"{"rule":"default","client":"user:bob","cost":11}"#, 200);
    assert_eq!(violation(&document, &schema("Decision"), &rejected), None);
    let refused =
        service.post_json("/v1/reserve", r#"{"rule":"default","client":"user:bob","cost":11}"#, 200);
    assert_eq!(violation(&document, &schema("Reservation"), &refused), None);
    let reserved = service.post_json("/v1/reserve", r#"{"rule":"default","client":"user:bob"}"#, 200);
    let commit = json!({ "reservation": reserved["reservation"], "cost": 1 });
    assert_eq!(violation(&document, &schema("Commit"), &commit), None);
    let committed = service.post_json("/v1/commit", &commit.to_string(), 200);
    assert_eq!(violation(&document, &schema("Committed"), &committed), None);
    let batch = r#"{"checks":[{"rule":"none","client":"user:bob"}]}"#;
    let results = service.post_json("/v1/check", batch, 200);
    assert_eq!(violation(&document, &schema("Results"), &results), None, "{results}");
    let problem = service.post_json("/v1/check", "{}", 400);
    assert_eq!(violation(&document, &schema("Problem"), &problem), None);
}

/// The pointers to all members of a value.
fn pointers(value: &Value, prefix: &str, found: &mut Vec<String>) {
    let members: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, member)| (name.clone(), member)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect(),
        _ => Vec::new(),
    };
    for (name, member) in members.into_iter().filter(|(_, member)| !member.is_null()) {
        let pointer = format!("{prefix}/{name}");
        pointers(member, &pointer, found);
        found.push(pointer);
    }
}

/// A valid message for each schema, and the path to which it is sent.
fn messages() -> [(&'static str, &'static str, Value); 9] {
    let request = json!({ "method": "GET", "host": "a.example", "path": "/", "headers": { "x-a": "b" }, "peer": "192.0.2.1" });
    let check = json!({ "rule": "default", "client": "user:bob", "cost": 1, "request": null });
    let several =
        json!({ "rule": "default", "client": "user:bob", "cost": 1, "request": null, "checks": null });
    let of_request = json!({ "request": request, "rule": null, "client": null, "cost": null });
    let refund =
        json!({ "rule": "default", "client": { "user": "bob" }, "cost": 1, "charged_at": 1_700_000_000.5 });
    let reserve = json!({ "rule": "default", "client": "user:bob", "cost": 1, "ttl": 60 });
    let commit = json!({ "reservation": "00000000000000000000000000000000", "cost": 1 });
    let entries = json!([{ "key": "k", "value": "v" }]);
    let limit = json!({ "requestsPerUnit": 5, "unit": "MINUTE" });
    let descriptors = json!([{ "entries": entries, "limit": limit, "hitsAddend": 1 }]);
    [
        ("Check", "/v1/check", several),
        ("Check", "/v1/check", of_request),
        ("SingleCheck", "/v1/peek", check),
        ("SingleCheck", "/v1/peek", json!({ "request": request })),
        ("Refund", "/v1/refund", refund),
        ("Reset", "/v1/reset", json!({ "rule": "default", "client": "user:bob" })),
        ("Reserve", "/v1/reserve", reserve),
        ("Commit", "/v1/commit", commit),
        ("RateLimitCall", "/json", json!({ "domain": "d", "descriptors": descriptors, "hitsAddend": 1 })),
    ]
}

/// The message with each of its members replaced by each of several values.
fn variants(body: &Value) -> Vec<Value> {
    let values = [
        json!(""),
        json!(0),
        json!(0.0),
        json!(2.0),
        json!(1.5),
        json!(-1),
        json!(true),
        json!([]),
        json!({}),
        json!(null),
    ];
    let mut found = Vec::new();
    pointers(body, "", &mut found);
    let mut variants = vec![body.clone()];
    for pointer in found {
        // A check needs a rule or a request, and a rule that distinguishes clients needs one.
        let is_needed = matches!(&*pointer, "/rule" | "/request" | "/client");
        for value in values.iter().filter(|value| !(is_needed && value.is_null())) {
            let mut variant = body.clone();
            *variant.pointer_mut(&pointer).expect("a member") = value.clone();
            variants.push(variant);
        }
    }
    variants
}

/// A program that validates its messages by the document must not be surprised by the service, nor the other way round.
#[test]
fn openapi_schemas_accept_what_the_service_accepts() {
    let (document, service) = (document(), TestService::start(POLICY));
    let mut differences = Vec::new();
    for (schema, path, body) in messages() {
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        for body in variants(&body) {
            let status = service.post(path, &body.to_string()).status;
            let violation = violation(&document, &schema, &body);
            if (status == 400) != violation.is_some() {
                differences.push(format!("{path} {body}: {status}, {violation:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// serde lists all known fields when it finds an unknown one.
#[test]
fn openapi_properties_are_the_fields_of_each_message() {
    let (document, service) = (document(), TestService::start(POLICY));
    let known = |path: &str, body: &str| -> BTreeSet<String> {
        let detail = service.post_json(path, body, 400)["detail"].to_string();
        let (_, expected) = detail.split_once("expected").unwrap_or_else(|| panic!("{detail}"));
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let unknown = r#"{"?":0}"#;
    for (schema, path, body) in [
        ("Check", "/v1/check", unknown),
        ("SingleCheck", "/v1/peek", unknown),
        ("Request", "/v1/check", r#"{"request":{"?":0}}"#),
        ("Refund", "/v1/refund", unknown),
        ("Reset", "/v1/reset", unknown),
        ("Reserve", "/v1/reserve", unknown),
        ("Commit", "/v1/commit", unknown),
    ] {
        let properties = object(&document["components"]["schemas"][schema]["properties"]);
        let documented: BTreeSet<_> = properties.keys().cloned().collect();
        assert_eq!(documented, known(path, body), "{schema}");
    }
}

#[test]
fn openapi_every_path_and_method_is_served_and_lists_its_errors() {
    let (document, service) = (document(), TestService::start(POLICY));
    for (path, item) in object(&document["paths"]) {
        for (method, operation) in object(item) {
            let response = service.http(&method.to_uppercase(), path, "", "");
            assert!(!matches!(response.status, 404 | 405), "{method} {path}: {response:?}");
            assert!(statuses(operation).contains(response.status.to_string().as_str()), "{method} {path}");
        }
        let other = service.http("DELETE", path, "", "");
        // Any method is allowed there.
        if path == "/v1/authorize" {
            assert_eq!(other.status, 400, "{path}");
            continue;
        }
        assert_eq!(other.status, 405, "{path}");
        let (_, operation) = object(item).iter().next().expect("an operation");
        assert!(statuses(operation).contains("405"), "{path}");
    }
    for path in ["check", "peek", "refund", "reset", "reserve", "commit"] {
        let listed = statuses(&document["paths"][format!("/v1/{path}")]["post"]);
        for status in ["200", "400", "401", "403", "404", "405", "408", "413", "415", "503"] {
            assert!(listed.contains(status), "{path} {status}");
        }
    }
}
