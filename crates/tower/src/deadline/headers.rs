//! The headers that carry a deadline, as the time that remains.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::TimeSpan;

/// The name of the field in gRPC: up to eight digits and a unit.
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Milliseconds.
const DEADLINE_MS: HeaderName = HeaderName::from_static("x-request-deadline-ms");
/// Which part of the response the deadline is for: `head`, or the whole response without this header.
const DEADLINE_SCOPE: HeaderName = HeaderName::from_static("x-request-deadline-scope");
const HEAD: HeaderValue = HeaderValue::from_static("head");
/// Milliseconds, set by Envoy.
const ENVOY_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");

/// The largest number of `grpc-timeout`.
const GRPC_MAX: u64 = 99_999_999;

/// What a deadline came with, besides `X-Request-Deadline-Ms`, which is always written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeadlineHeaders {
    pub(super) grpc: bool,
    pub(super) envoy: bool,
    /// It ends when the response starts.
    pub(super) is_for_head: bool,
}

/// The shortest time of all valid headers, and which of them there are.
pub(super) fn read(headers: &HeaderMap) -> Option<(TimeSpan, DeadlineHeaders)> {
    // Most requests have none of the three.
    let shortest = |name: &HeaderName, parse: fn(&str) -> Option<TimeSpan>| {
        headers.get_all(name).iter().filter_map(|value| parse(value.to_str().ok()?)).min()
    };
    let own = shortest(&DEADLINE_MS, parse_millis);
    let grpc = shortest(&GRPC_TIMEOUT, parse_grpc);
    let envoy = shortest(&ENVOY_TIMEOUT_MS, parse_millis);
    let remaining = [own, grpc, envoy].into_iter().flatten().min()?;
    let is_for_head = headers.get(&DEADLINE_SCOPE).is_some_and(|scope| scope == HEAD);
    Some((remaining, DeadlineHeaders { grpc: grpc.is_some(), envoy: envoy.is_some(), is_for_head }))
}

/// Rounds down: the next service must not believe that it has more time.
pub(super) fn write(headers: &mut HeaderMap, kinds: DeadlineHeaders, remaining: TimeSpan) {
    let millis = HeaderValue::from(remaining.as_micros() / 1_000);
    if kinds.envoy || headers.contains_key(&ENVOY_TIMEOUT_MS) {
        headers.insert(ENVOY_TIMEOUT_MS, millis.clone());
    }
    headers.insert(DEADLINE_MS, millis);
    if kinds.is_for_head {
        headers.insert(DEADLINE_SCOPE, HEAD);
    }
    if (kinds.grpc || headers.contains_key(&GRPC_TIMEOUT))
        && let Ok(timeout) = HeaderValue::try_from(format_grpc(remaining))
    {
        headers.insert(GRPC_TIMEOUT, timeout);
    }
}

pub(super) fn remove(headers: &mut HeaderMap) {
    for name in [DEADLINE_MS, DEADLINE_SCOPE, GRPC_TIMEOUT, ENVOY_TIMEOUT_MS] {
        headers.remove(name);
    }
}

fn parse_millis(text: &str) -> Option<TimeSpan> {
    let text = text.trim_matches([' ', '\t']);
    is_digits(text).then(|| TimeSpan::from_millis(text.parse().unwrap_or(u64::MAX)))
}

fn parse_grpc(text: &str) -> Option<TimeSpan> {
    let (unit_at, unit) = text.char_indices().next_back()?;
    let digits = text.get(..unit_at)?;
    if !is_digits(digits) || digits.len() > 8 {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => TimeSpan::from_secs(number * 3_600),
        'M' => TimeSpan::from_secs(number * 60),
        'S' => TimeSpan::from_secs(number),
        'm' => TimeSpan::from_millis(number),
        'u' => TimeSpan::from_micros(number),
        'n' => TimeSpan::from_micros(number / 1_000),
        _ => return None,
    })
}

/// In the finest unit that fits. A timeout of gRPC is positive, so a deadline that has passed becomes the shortest one.
fn format_grpc(remaining: TimeSpan) -> String {
    let micros = remaining.as_micros();
    if micros == 0 {
        return "1n".to_owned();
    }
    let units = [(1, 'u'), (1_000, 'm'), (1_000_000, 'S'), (60_000_000, 'M')];
    let fitting = units.into_iter().find(|(per_unit, _)| micros / per_unit <= GRPC_MAX);
    let (per_unit, unit) = fitting.unwrap_or((3_600_000_000, 'H'));
    format!("{}{unit}", (micros / per_unit).min(GRPC_MAX))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn remaining(pairs: &[(&'static str, &'static str)]) -> Option<TimeSpan> {
        read(&headers(pairs)).map(|(remaining, _)| remaining)
    }

    #[test]
    fn deadline_headers_of_each_kind_are_read() {
        let second = Some(TimeSpan::from_secs(1));
        for (name, value) in [
            ("x-request-deadline-ms", "1000"),
            ("x-request-deadline-ms", " 1000 "),
            ("x-envoy-expected-rq-timeout-ms", "1000"),
            ("grpc-timeout", "1S"),
            ("grpc-timeout", "1000m"),
            ("grpc-timeout", "1000000u"),
        ] {
            assert_eq!(remaining(&[(name, value)]), second, "{name}: {value}");
        }
        assert_eq!(remaining(&[("grpc-timeout", "2H")]), Some(TimeSpan::from_secs(7_200)));
        assert_eq!(remaining(&[("grpc-timeout", "2M")]), Some(TimeSpan::from_secs(120)));
        assert_eq!(remaining(&[("grpc-timeout", "5000n")]), Some(TimeSpan::from_micros(5)));
        assert_eq!(remaining(&[("x-request-deadline-ms", "0")]), Some(TimeSpan::ZERO));
        let huge = "99999999999999999999999";
        assert_eq!(remaining(&[("x-request-deadline-ms", huge)]), Some(TimeSpan::MAX));
    }

    #[test]
    fn deadline_header_that_is_invalid_is_ignored() {
        for (name, value) in [
            ("x-request-deadline-ms", ""),
            ("x-request-deadline-ms", "-1"),
            ("x-request-deadline-ms", "+1"),
            ("x-request-deadline-ms", "1.5"),
            ("x-request-deadline-ms", "soon"),
            ("grpc-timeout", "S"),
            ("grpc-timeout", "1s"),
            ("grpc-timeout", "123456789m"),
            ("grpc-timeout", "1"),
            ("grpc-timeout", ""),
        ] {
            assert_eq!(remaining(&[(name, value)]), None, "{name}: {value}");
        }
        assert_eq!(remaining(&[]), None);
    }

    #[test]
    fn deadline_headers_of_several_kinds_the_shortest_applies_and_all_are_written() {
        let mut headers = headers(&[
            ("x-request-deadline-ms", "3000"),
            ("grpc-timeout", "2S"),
            ("x-envoy-expected-rq-timeout-ms", "15000"),
        ]);
        let (remaining, kinds) = read(&headers).unwrap();
        assert_eq!(remaining, TimeSpan::from_secs(2));
        headers.clear();
        write(&mut headers, kinds, TimeSpan::from_micros(1_999_999));
        assert_eq!(headers["x-request-deadline-ms"], "1999");
        assert_eq!(headers["x-envoy-expected-rq-timeout-ms"], "1999");
        assert_eq!(headers["grpc-timeout"], "1999999u");
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn deadline_for_the_head_stays_one_over_several_hops() {
        let mut headers = headers(&[("x-request-deadline-ms", "3000"), ("x-request-deadline-scope", "head")]);
        let (remaining, kinds) = read(&headers).unwrap();
        headers.clear();
        write(&mut headers, kinds, remaining);
        assert_eq!((read(&headers).unwrap().1, headers.len()), (kinds, 2));
        headers.insert("x-request-deadline-scope", HeaderValue::from_static("all"));
        assert!(!read(&headers).unwrap().1.is_for_head, "an unknown scope is the whole response");
        remove(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn deadline_headers_write_only_kinds_that_came_in_or_are_there() {
        let mut headers = headers(&[]);
        write(&mut headers, DeadlineHeaders::default(), TimeSpan::from_secs(1));
        assert_eq!(headers.len(), 1);
        headers.insert("grpc-timeout", HeaderValue::from_static("9S"));
        write(&mut headers, DeadlineHeaders::default(), TimeSpan::from_secs(1));
        assert_eq!(headers["grpc-timeout"], "1000000u", "a longer timeout is replaced");
    }

    #[test]
    fn grpc_timeout_written_is_never_longer_and_is_read_back() {
        for micros in [1, 999, 99_999_999, 100_000_000, 99_999_999_999, 100_000_000_000, 1 << 52] {
            let span = TimeSpan::from_micros(micros);
            let text = format_grpc(span);
            let read = parse_grpc(&text).unwrap();
            assert!(read <= span && text.len() <= 9, "{text}");
            assert!(read.as_micros() * 100 >= micros * 99, "{text}");
        }
        assert_eq!(format_grpc(TimeSpan::ZERO), "1n");
    }
}
