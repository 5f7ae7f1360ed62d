use std::time::Duration;

use http::Response;
use tidegate_core::{Criticality, TimeSpan};
use tidegate_headers::BodyStyle;
use tidegate_tower::breaker::BreakerOpen;
use tidegate_tower::bulkhead::BulkheadFull;
use tidegate_tower::deadline::DeadlineExceeded;
use tidegate_tower::load_shed::Overload;
use tidegate_tower::thread_pool::{ThreadPoolError, ThreadPoolFull};
use tidegate_tower::timeout::AttemptTimeout;
use tidegate_tower::{BoxError, LayerError, into_response, is_rejection};

use crate::support::Broken;

#[test]
fn response_to_each_error_has_its_status_code_and_retry_after() {
    let open = BreakerOpen { retry_after: Some(TimeSpan::from_millis(29_100)) };
    let cases: [(BoxError, u16, &str, Option<&str>); 9] = [
        (open.into(), 503, "breaker_open", Some("30")),
        (BreakerOpen { retry_after: None }.into(), 503, "breaker_open", Some("1")),
        (BulkheadFull { concurrent: 5 }.into(), 503, "bulkhead_full", Some("1")),
        (ThreadPoolFull { queue: 5 }.into(), 503, "thread_pool_full", Some("1")),
        (ThreadPoolError::from(ThreadPoolFull { queue: 5 }).into(), 503, "thread_pool_full", Some("1")),
        (Overload { criticality: Criticality::Critical }.into(), 503, "overloaded", Some("1")),
        (DeadlineExceeded.into(), 504, "deadline_exceeded", Some("1")),
        (AttemptTimeout { after: Duration::from_secs(1) }.into(), 504, "upstream_timeout", Some("1")),
        (Broken.into(), 500, "internal_error", None),
    ];
    for (error, status, code, retry_after) in cases {
        let response: Response<Vec<u8>> = into_response(error, BodyStyle::Flat);
        assert_eq!(response.status(), status, "{code}");
        let header = response.headers().get("retry-after").map(|value| value.to_str().unwrap());
        assert_eq!(header, retry_after, "{code}");
        let body = String::from_utf8(response.into_body()).unwrap();
        assert!(body.starts_with(&format!(r#"{{"error":"{code}""#)), "{body}");
        assert!(!body.contains("broke"), "the text of unknown errors is not sent: {body}");
    }
}

/// An error of a user's own layer with a cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot load the profile")]
struct Wrapped(#[source] BulkheadFull);

#[test]
fn response_to_an_error_with_a_cause_is_that_of_the_cause() {
    let error = LayerError::new(Wrapped(BulkheadFull { concurrent: 5 }));
    // The service has worked: only a dependency rejected its call.
    assert!(!is_rejection(&error));
    assert!(is_rejection(&LayerError::new(BulkheadFull { concurrent: 5 })));
    let response: Response<Vec<u8>> = into_response(error, BodyStyle::Problem);
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (503, &"application/problem+json".parse().unwrap())
    );
}
