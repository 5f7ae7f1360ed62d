use tidegate_core::{LimitUnit, TimeSpan};

use super::*;
use crate::refusal::RefusalEntry;

const AT: Timestamp = Timestamp::from_secs(1_705_334_370);

const REJECTING: LimitReport<'static> = LimitReport {
    name: "default",
    quota: 100,
    window: Some(TimeSpan::from_secs(60)),
    remaining: 0,
    reset_after: TimeSpan::from_secs(60),
    retry_after: Some(TimeSpan::from_secs(30)),
    unit: LimitUnit::Requests,
};

fn assert_bodies(body: &ErrorBody<'_>, [flat, nested, problem]: [&str; 3]) {
    for (style, expected) in BodyStyle::ALL.into_iter().zip([flat, nested, problem]) {
        let encoded = String::from_utf8(body.encode(style)).unwrap();
        assert_eq!(encoded, format!("{expected}\n"), "{style:?}");
        serde_json::from_str::<serde_json::Value>(&encoded).unwrap();
    }
}

#[test]
fn error_body_rejected_by_limit_has_expected_bytes() {
    let limit = ReportedLimit { at: AT, report: &REJECTING, violated: &["default", "tier \"x\""] };
    let body = RefusalEntry::RATE_LIMIT_EXCEEDED.body(Some(30), Some(limit));
    assert_bodies(
        &body,
        [
            r#"{"error":"rate_limit_exceeded","message":"Too many requests. Please retry after 30 seconds.","retry_after":30,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"default"}"#,
            r#"{"error":{"code":"RATE_LIMITED","message":"Too many requests. Please retry after 30 seconds.","retry_after":30,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"default"}}"#,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Too many requests. Please retry after 30 seconds.","violated-policies":["default","tier \"x\""],"retry_after":30,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"default"}"#,
        ],
    );
}

#[test]
fn error_body_locked_out_has_expected_bytes() {
    let limit = ReportedLimit { at: AT, report: &REJECTING, violated: &["default"] };
    let body = RefusalEntry::LOCKED_OUT.body(Some(1), Some(limit));
    assert_bodies(
        &body,
        [
            r#"{"error":"locked_out","message":"Client is locked out after too many rejected requests. Please retry after 1 second.","retry_after":1,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"default"}"#,
            r#"{"error":{"code":"LOCKED_OUT","message":"Client is locked out after too many rejected requests. Please retry after 1 second.","retry_after":1,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"default"}}"#,
            r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Request not satisfied due to detection of abnormal request pattern","status":429,"detail":"Client is locked out after too many rejected requests. Please retry after 1 second.","violated-policies":["default"],"retry_after":1,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"default"}"#,
        ],
    );
}

#[test]
fn error_body_concurrency_exceeded_has_expected_bytes() {
    let report = LimitReport::exhausted_concurrency("exports", 2);
    let limit = ReportedLimit { at: AT, report: &report, violated: &["exports"] };
    let body = RefusalEntry::CONCURRENCY_EXCEEDED.body(Some(1), Some(limit));
    assert_bodies(
        &body,
        [
            r#"{"error":"concurrency_exceeded","message":"Too many concurrent requests. Please retry after 1 second.","retry_after":1,"limit":2,"remaining":0,"reset":1705334371,"window":null,"rule":"exports"}"#,
            r#"{"error":{"code":"CONCURRENCY_EXCEEDED","message":"Too many concurrent requests. Please retry after 1 second.","retry_after":1,"limit":2,"remaining":0,"reset":1705334371,"window":null,"rule":"exports"}}"#,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Too many concurrent requests. Please retry after 1 second.","violated-policies":["exports"],"retry_after":1,"limit":2,"remaining":0,"reset":1705334371,"window":null,"rule":"exports"}"#,
        ],
    );
}

#[test]
fn error_body_cost_above_limit_has_expected_bytes() {
    let report = LimitReport {
        name: "a \"b\" ü",
        window: Some(TimeSpan::from_secs(90)),
        remaining: 7,
        reset_after: TimeSpan::from_secs(12),
        retry_after: None,
        ..REJECTING
    };
    let limit = ReportedLimit { at: AT, report: &report, violated: &["a \"b\" ü"] };
    let body = RefusalEntry::RATE_LIMIT_EXCEEDED.body(None, Some(limit));
    assert_bodies(
        &body,
        [
            r#"{"error":"rate_limit_exceeded","message":"Request cost exceeds the limit. Retrying will not help.","limit":100,"remaining":7,"reset":1705334382,"window":"90s","rule":"a \"b\" ü"}"#,
            r#"{"error":{"code":"RATE_LIMITED","message":"Request cost exceeds the limit. Retrying will not help.","limit":100,"remaining":7,"reset":1705334382,"window":"90s","rule":"a \"b\" ü"}}"#,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Request cost exceeds the limit. Retrying will not help.","violated-policies":["a \"b\" ü"],"limit":100,"remaining":7,"reset":1705334382,"window":"90s","rule":"a \"b\" ü"}"#,
        ],
    );
}

#[test]
fn error_body_other_statuses_have_expected_bytes() {
    let cases = [
        (StatusCode::BAD_REQUEST, "bad_request", "BAD_REQUEST", "Bad Request"),
        (StatusCode::FORBIDDEN, "banned", "BANNED", "Forbidden"),
        (StatusCode::NOT_FOUND, "no_route", "NO_ROUTE", "Not Found"),
        (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "BODY_TOO_LARGE", "Payload Too Large"),
        (StatusCode::BAD_GATEWAY, "upstream_failed", "UPSTREAM_FAILED", "Bad Gateway"),
        (StatusCode::SERVICE_UNAVAILABLE, "no_server", "NO_SERVER", "Service Unavailable"),
        (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", "UPSTREAM_TIMEOUT", "Gateway Timeout"),
    ];
    for (status, code, nested_code, title) in cases {
        let body = ErrorBody::new(status, code, "The \"Host\"\nis not a host.");
        let message = r#""The \"Host\"\nis not a host.""#;
        let number = status.as_u16();
        assert_bodies(
            &body,
            [
                &format!(r#"{{"error":"{code}","message":{message}}}"#),
                &format!(r#"{{"error":{{"code":"{nested_code}","message":{message}}}}}"#),
                &format!(r#"{{"detail":{message},"status":{number},"title":"{title}"}}"#),
            ],
        );
    }
}

#[test]
fn refusal_message_with_retry_after_states_the_time() {
    assert_eq!(
        RefusalEntry::RATE_LIMIT_EXCEEDED.body(Some(30), None).full_message(),
        "Too many requests. Please retry after 30 seconds."
    );
    assert_eq!(
        RefusalEntry::CONCURRENCY_EXCEEDED.body(Some(1), None).full_message(),
        "Too many concurrent requests. Please retry after 1 second."
    );
    assert_eq!(
        RefusalEntry::RATE_LIMIT_EXCEEDED.body(None, None).full_message(),
        "Request cost exceeds the limit. Retrying will not help."
    );
    assert_eq!(
        RefusalEntry::LOCKED_OUT.body(None, None).full_message(),
        "Client is locked out after too many rejected requests."
    );
}
