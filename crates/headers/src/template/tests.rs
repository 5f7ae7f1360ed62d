use proptest::prelude::*;

use super::*;
use crate::refusal::RefusalEntry;

const AT: Timestamp = Timestamp::from_secs(1_705_334_370);

fn report(name: &str) -> LimitReport<'_> {
    LimitReport {
        name,
        quota: 100,
        window: Some(TimeSpan::from_secs(60)),
        remaining: 0,
        reset_after: TimeSpan::from_secs(60),
        retry_after: Some(TimeSpan::from_millis(29_500)),
        unit: LimitUnit::Requests,
    }
}

fn rendered(template: &str, content_type: &str, name: &str) -> String {
    let template = BodyTemplate::parse(template, content_type).unwrap();
    let report = report(name);
    let limit = ReportedLimit { at: AT, report: &report, violated: &[] };
    let body = RefusalEntry::RATE_LIMIT_EXCEEDED.body(Some(30), Some(limit));
    String::from_utf8(template.encode(&body)).unwrap()
}

fn error(template: &str, content_type: &str) -> String {
    BodyTemplate::parse(template, content_type).unwrap_err().to_string()
}

#[test]
fn template_with_every_placeholder_has_the_values_of_the_rejection() {
    let fields = TemplateField::NAMES.map(|name| format!("{name}={{{{{name}}}}}")).join("\n");
    assert_eq!(
        rendered(&fields, "text/plain", "default"),
        "code=rate_limit_exceeded\nmessage=Too many requests. Please retry after 30 seconds.\nstatus=429\nretry_after=30\n\
         limit=100\nremaining=0\nreset=1705334400\nreset_ms=1705334399500\nwindow=1m\nwindow_seconds=60\nrule=default"
    );
}

#[test]
fn placeholder_in_json_is_the_content_of_a_string_or_a_value() {
    let template = r#"{"a": {{rule}}, "b": "rule \"{{ rule }}\"", "c": {{limit}}, "d": "{{limit}}s"}"#;
    assert_eq!(
        rendered(template, "application/json", "a\"b"),
        r#"{"a": "a\"b", "b": "rule \"a\"b\"", "c": 100, "d": "100s"}"#
    );
}

#[test]
fn values_are_escaped_as_the_content_type_requires() {
    let name = "<b>&\"'\n";
    assert_eq!(rendered("{{rule}}", "text/html; charset=utf-8", name), "&lt;b&gt;&amp;&quot;&#39; ");
    assert_eq!(rendered("{{rule}}", "application/problem+xml", name), "&lt;b&gt;&amp;&quot;&#39; ");
    assert_eq!(rendered("{{rule}}", "text/plain", name), "<b>&\"' ");
    assert_eq!(rendered("{{rule}}", "application/problem+json", name), r#""<b>&\"'\n""#);
}

#[test]
fn unknown_values_are_null_in_json_and_empty_elsewhere() {
    let body = |content_type| {
        let template =
            BodyTemplate::parse("[{{retry_after}},\"{{window}}\",{{rule}}]", content_type).unwrap();
        String::from_utf8(template.encode(&RefusalEntry::STORE_UNAVAILABLE.body(None, None))).unwrap()
    };
    assert_eq!(
        (body("application/json"), body("text/plain")),
        ("[null,\"\",null]".into(), "[,\"\",]".into())
    );
}

#[test]
fn invalid_template_says_where_and_why() {
    assert_eq!(error("a\nb {{limt}}", "text/plain"), "line 2: unknown placeholder `limt`");
    assert_eq!(error("{{limit", "text/plain"), "line 1: a placeholder has no `}}`");
    for content_type in ["text/css", "application/javascript", "text/plain; charset=latin1", "json", ""] {
        assert!(error("", content_type).starts_with("values cannot be escaped"), "{content_type}");
    }
    // The last ones are valid JSON with some values only.
    for template in
        ["", "{", "{{limit}}{{limit}}", "{\"a\": -{{limit}}}", "\"\\{{rule}}\"", "{\"a\": {{retry_after}}1}"]
    {
        assert!(error(template, "application/json").contains("it is not JSON"), "{template}");
    }
}

proptest! {
    #[test]
    fn json_template_that_is_accepted_is_json_with_any_value(
        name in any::<String>(),
        parts in proptest::collection::vec(
            prop_oneof![
                "[\"{}\\[\\]:,\\\\0-9a ]{0,6}",
                Just("{\"a\": ".to_owned()),
                Just("\"".to_owned()),
                Just("}".to_owned()),
                Just("{{rule}}".to_owned()),
                Just("{{message}}".to_owned()),
                Just("{{retry_after}}".to_owned()),
            ],
            1..6,
        ),
    ) {
        if let Ok(template) = BodyTemplate::parse(&parts.concat(), "application/json") {
            for (window, retry_after) in [(None, None), (Some(TimeSpan::from_secs(60)), Some(7))] {
                let report = LimitReport { window, ..report(&name) };
                let limit = ReportedLimit { at: AT, report: &report, violated: &[] };
                let body = ErrorBody { retry_after, ..ErrorBody::new(StatusCode::TOO_MANY_REQUESTS, "a", &name) };
                for limit in [None, Some(limit)] {
                    let encoded = template.encode(&ErrorBody { limit, ..body });
                    prop_assert!(serde_json::from_slice::<serde_json::Value>(&encoded).is_ok(), "{:?}", template);
                }
            }
        }
    }
}
