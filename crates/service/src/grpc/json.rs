//! `POST /json`: a rate limit call over HTTP, in the JSON format of protobuf, as the reference server has it.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use prost_types::value::Kind;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_store::Store;
use tidegate_telemetry::RequestRecord;

use super::bad_descriptor::RlsError;
use super::message::{
    AddedHeader, DescriptorEntry, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    ResponseCode, ResponseUnit,
};
use super::rate_limit;
use super::status::GrpcCode;
use crate::worker::ServiceWorker;

/// Decides the call in `body`. Returns the status and the JSON body: 200, 429 if a descriptor is over its limit, 400 for a
/// call that is invalid, 500 if it cannot be decided.
pub(crate) async fn handle<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    peer: IpAddr,
    body: &[u8],
    record: &mut RequestRecord<'_>,
) -> (u16, String) {
    let request = match parse(body) {
        Ok(request) => request,
        Err(error) => return (400, error_json(&error.to_string())),
    };
    match rate_limit::decide(worker, &request, peer, None, record).await {
        Ok(response) => {
            let is_over = response.overall_code == ResponseCode::OverLimit as i32;
            (if is_over { 429 } else { 200 }, response_json(&response))
        }
        Err(RlsError::Call(error)) => {
            let status = if error.code == GrpcCode::Unavailable { 500 } else { 400 };
            (status, error_json(&error.message))
        }
        // Unlike a gRPC status, 400 says that the request itself is wrong.
        Err(RlsError::Descriptor(bad)) => (400, error_json(bad.message())),
    }
}

fn error_json(message: &str) -> String {
    serde_json::json!({ "error": message }).to_string()
}

/// Parses a request. Unknown fields are errors, as in the reference server.
fn parse(body: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    serde_json::from_slice(body).map(|JsonObject::<JsonRequest>(request)| request.into())
}

/// A message that must be an object. A derived implementation also reads a list of the values, whose meaning would depend on the
/// order of the fields here.
struct JsonObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Protobuf writes names in camel case and also reads those of the message definition. Null is the default of any field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonObject<JsonDescriptor>>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<JsonNumber<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonDescriptor {
    entries: Option<Vec<JsonObject<JsonEntry>>>,
    limit: Option<JsonObject<JsonOverride>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<JsonNumber<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonOverride {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<JsonNumber<u32>>,
    unit: Option<JsonUnit>,
}

/// A number, which may be a string: protobuf writes 64-bit numbers as strings.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value", bound(deserialize = "N: TryFrom<u64>"))]
struct JsonNumber<N>(N);

impl<N: TryFrom<u64>> TryFrom<Value> for JsonNumber<N> {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let number = match &value {
            Value::Number(number) => whole(number).and_then(|number| u64::try_from(number).ok()),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number.map(Self).ok_or("expected a whole number that is not negative and not too large for its field")
    }
}

/// A number without a fraction. JSON has one kind of numbers: 2, 2.0 and 2e0 are the same.
fn whole(number: &serde_json::Number) -> Option<i128> {
    if let Some(whole) = number.as_i128() {
        return Some(whole);
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e18)?;
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
    let whole = float as i128;
    Some(whole)
}

/// A unit by name or number.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct JsonUnit(i32);

impl TryFrom<Value> for JsonUnit {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let unit = match &value {
            Value::Number(number) => whole(number).and_then(|number| i32::try_from(number).ok()),
            Value::String(name) => {
                let position = ResponseUnit::NAMES.iter().position(|known| known == name);
                position.and_then(|position| i32::try_from(position).ok())
            }
            _ => None,
        };
        unit.map(Self).ok_or("expected a unit such as MINUTE")
    }
}

impl From<JsonRequest> for RateLimitRequest {
    fn from(JsonRequest { domain, descriptors, hits_addend }: JsonRequest) -> Self {
        let descriptors = descriptors.unwrap_or_default().into_iter();
        let descriptors = descriptors.map(|JsonObject(descriptor)| descriptor.into()).collect();
        let domain = domain.unwrap_or_default();
        Self { domain, descriptors, hits_addend: hits_addend.map_or(0, |JsonNumber(hits)| hits) }
    }
}

impl From<JsonDescriptor> for RateLimitDescriptor {
    fn from(JsonDescriptor { entries, limit, hits_addend }: JsonDescriptor) -> Self {
        let entry = |JsonObject(JsonEntry { key, value })| DescriptorEntry {
            key: key.unwrap_or_default(),
            value: value.unwrap_or_default().into_bytes(),
        };
        let entries = entries.unwrap_or_default().into_iter().map(entry);
        let limit = limit.map(|JsonObject(JsonOverride { requests_per_unit, unit })| LimitOverride {
            requests_per_unit: requests_per_unit.map_or(0, |JsonNumber(requests)| requests),
            unit: unit.map_or(0, |JsonUnit(unit)| unit),
        });
        Self { entries: entries.collect(), limit, hits_addend: hits_addend.map(|JsonNumber(hits)| hits) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonResponse<'r> {
    overall_code: &'static str,
    statuses: Vec<JsonStatus<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_headers_to_add: Vec<JsonHeader<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<BTreeMap<&'r str, &'r str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus<'r> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonLimit<'r>>,
    /// Protobuf leaves out zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_remaining: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonLimit<'r> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'r str,
    requests_per_unit: u32,
    unit: &'static str,
}

#[derive(Serialize)]
struct JsonHeader<'r> {
    key: &'r str,
    value: &'r str,
}

fn json_headers(headers: &[AddedHeader]) -> Vec<JsonHeader<'_>> {
    headers.iter().map(|header| JsonHeader { key: &header.key, value: &header.value }).collect()
}

/// The text of a value of metadata: they are all texts.
fn text_of(value: &prost_types::Value) -> &str {
    match &value.kind {
        Some(Kind::StringValue(text)) => text,
        _ => "",
    }
}

fn response_json(response: &RateLimitResponse) -> String {
    let statuses = response.statuses.iter().map(|status| JsonStatus {
        code: code_name(status.code()),
        current_limit: status.current_limit.as_ref().map(|limit| JsonLimit {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: unit_name(limit.unit),
        }),
        limit_remaining: Some(status.limit_remaining).filter(|remaining| *remaining > 0),
        duration_until_reset: status.duration_until_reset.map(|duration| format!("{}s", duration.seconds)),
    });
    let json = JsonResponse {
        overall_code: code_name(response.overall_code()),
        statuses: statuses.collect(),
        response_headers_to_add: json_headers(&response.response_headers_to_add),
        request_headers_to_add: json_headers(&response.request_headers_to_add),
        dynamic_metadata: response.dynamic_metadata.as_ref().map(|metadata| {
            metadata.fields.iter().map(|(key, value)| (key.as_str(), text_of(value))).collect()
        }),
    };
    // Such a value can always be written.
    serde_json::to_string(&json).unwrap_or_default()
}

fn unit_name(unit: i32) -> &'static str {
    let [unknown, ..] = ResponseUnit::NAMES;
    usize::try_from(unit).ok().and_then(|unit| ResponseUnit::NAMES.get(unit)).copied().unwrap_or(unknown)
}

fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::Unknown => "UNKNOWN",
        ResponseCode::Ok => "OK",
        ResponseCode::OverLimit => "OVER_LIMIT",
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Duration;

    use super::super::message::{AddedHeader, CurrentLimit, DescriptorStatus};
    use super::*;

    #[test]
    fn json_request_is_read_with_names_in_both_styles() {
        for hits in ["\"hitsAddend\": \"2\"", "\"hits_addend\": 2"] {
            let text = format!(
                r#"{{"domain": "d", {hits}, "descriptors": [{{"entries": [{{"key": "k", "value": "v"}}],
                    "limit": {{"requestsPerUnit": 5, "unit": "WEEK"}}, {hits}}}]}}"#
            );
            let request = parse(text.as_bytes()).expect("a request");
            assert_eq!((request.domain.as_str(), request.hits_addend), ("d", 2));
            let [descriptor] = request.descriptors.as_slice() else { panic!("one descriptor") };
            assert_eq!(descriptor.hits_addend, Some(2));
            assert_eq!(descriptor.limit, Some(LimitOverride { requests_per_unit: 5, unit: 7 }));
            assert_eq!(descriptor.entries[0].value, b"v");
        }
    }

    #[test]
    fn json_request_with_unknown_field_or_invalid_value_is_rejected() {
        for text in [
            "",
            "[]",
            r#"{"domains": "d"}"#,
            r#"{"hitsAddend": -1}"#,
            r#"{"hitsAddend": 4294967296}"#,
            r#"{"descriptors": [{"limit": {"requestsPerUnit": "4294967296"}}]}"#,
            r#"{"descriptors": [{"hitsAddend": 18446744073709551616}]}"#,
            r#"{"descriptors": [{"limit": {"unit": "AGE"}}]}"#,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn json_request_with_a_list_in_place_of_an_object_is_rejected_with_the_reason() {
        for text in [
            r#"["d"]"#,
            r#"{"descriptors": [[]]}"#,
            r#"{"descriptors": [[[{"key": "k"}]]]}"#,
            r#"{"descriptors": [{"entries": [["k", "v"]]}]}"#,
            r#"{"descriptors": [{"limit": [5, "MINUTE"]}]}"#,
        ] {
            let error = parse(text.as_bytes()).expect_err(text).to_string();
            assert!(
                error.starts_with("invalid type: sequence, expected an object at line 1"),
                "{text}: {error}"
            );
        }
        let text = r#"{"descriptors": [{"entries": [{}], "limit": null}]}"#;
        let [RateLimitDescriptor { limit: None, .. }] = parse(text.as_bytes()).expect(text).descriptors[..]
        else {
            panic!("one descriptor without a limit");
        };
    }

    #[test]
    fn json_response_has_the_names_of_protobuf_and_leaves_out_zero() {
        let limit =
            CurrentLimit { requests_per_unit: 3, unit: ResponseUnit::Minute.into(), name: String::new() };
        let over = DescriptorStatus {
            code: ResponseCode::OverLimit.into(),
            current_limit: Some(limit),
            limit_remaining: 0,
            duration_until_reset: Some(Duration { seconds: 40, nanos: 0 }),
        };
        let response = RateLimitResponse {
            overall_code: ResponseCode::OverLimit.into(),
            statuses: vec![over],
            response_headers_to_add: vec![AddedHeader { key: "k".to_owned(), value: "v".to_owned() }],
            ..RateLimitResponse::default()
        };
        let expected = r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":3,"unit":"MINUTE"},"durationUntilReset":"40s"}],"responseHeadersToAdd":[{"key":"k","value":"v"}]}"#;
        assert_eq!(response_json(&response), expected);
    }
}
