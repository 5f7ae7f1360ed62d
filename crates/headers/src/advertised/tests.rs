use http::header::HeaderName;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn parse(headers: &[(&'static str, &'static str)]) -> AdvertisedLimits {
    let pairs =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(name, value);
    }
    AdvertisedLimits::parse(&map, NOW)
}

fn limit(quota: u64, remaining: u64, reset_after: u64) -> AdvertisedLimit {
    AdvertisedLimit {
        quota: Some(quota),
        remaining: Some(remaining),
        reset_after: Some(TimeSpan::from_secs(reset_after)),
        ..AdvertisedLimit::default()
    }
}

fn named(name: &str, mut limit: AdvertisedLimit) -> AdvertisedLimit {
    limit.name = Some(name.to_owned());
    limit.unit = Some(LimitUnit::Requests);
    limit
}

fn per(window: u64, limit: AdvertisedLimit) -> AdvertisedLimit {
    AdvertisedLimit { window: Some(TimeSpan::from_secs(window)), ..limit }
}

#[test]
fn parse_newest_lists_are_joined_by_name() {
    let parsed = parse(&[
        ("ratelimit-policy", r#""burst";q=10;w=1, "daily";q=1000;w=86400;pk=:cHNk:"#),
        ("ratelimit-policy", r#""bytes";q=5;qu="content-64KiB";w=60, "own";q=7;qu="widgets""#),
        ("ratelimit", r#""daily";r=900;t=30, "burst";r=3;t=1;pk=:cHNk:"#),
        // The older style of the same server is not another limit.
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "3"),
    ]);
    let bytes = AdvertisedLimit {
        name: Some("bytes".to_owned()),
        quota: Some(5),
        window: Some(TimeSpan::from_secs(60)),
        unit: Some(LimitUnit::ContentBytes(64 << 10)),
        ..AdvertisedLimit::default()
    };
    let own = AdvertisedLimit { name: Some("own".to_owned()), quota: Some(7), ..AdvertisedLimit::default() };
    let expected = [
        named("burst", per(1, limit(10, 3, 1))),
        named("daily", per(86_400, limit(1_000, 900, 30))),
        bytes,
        own,
    ];
    assert_eq!(parsed.limits, expected);
    assert_eq!(parsed.retry_after, None);
}

#[test]
fn parse_newest_state_without_policy_has_unknown_quota() {
    let expected = AdvertisedLimit { quota: None, name: Some("a".to_owned()), ..limit(0, 5, 9) };
    assert_eq!(parse(&[("ratelimit", r#""a";r=5;t=9"#)]).limits, [expected]);
}

#[test]
fn dictionary_and_single_values_are_one_limit_with_the_window_of_their_policy() {
    let expected = [
        per(60, limit(100, 50, 30)),
        AdvertisedLimit {
            quota: Some(1_000),
            window: Some(TimeSpan::from_secs(3_600)),
            ..AdvertisedLimit::default()
        },
    ];
    let policy = ("ratelimit-policy", "100;w=60, 1000;w=3600");
    assert_eq!(parse(&[policy, ("ratelimit", "limit=100, remaining=50, reset=30")]).limits, expected);
    let values = [("ratelimit-remaining", "50"), ("ratelimit-reset", "30")];
    assert_eq!(parse(&[policy, ("ratelimit-limit", "100"), values[0], values[1]]).limits, expected);
    let listed = ("ratelimit-limit", "100, 100;w=60, 1000;w=3600");
    assert_eq!(parse(&[listed, values[0], values[1]]).limits, expected);
    let own_window = ("ratelimit-limit", "100;w=60");
    assert_eq!(parse(&[own_window, values[0], values[1]]).limits, [per(60, limit(100, 50, 30))]);
}

#[test]
fn parse_single_values_in_every_spelling() {
    for [limit_name, remaining, reset] in [
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
        ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"],
    ] {
        for value in ["30", " 30 ", "1700000030"] {
            let parsed = parse(&[(limit_name, "100"), (remaining, "50"), (reset, value)]);
            assert_eq!(parsed.limits, [limit(100, 50, 30)], "{limit_name} {value}");
        }
    }
    let past = parse(&[("x-ratelimit-reset", "1600000000")]);
    assert_eq!(past.limits[0].reset_after, Some(TimeSpan::ZERO));
}

#[test]
fn parse_retry_after_as_seconds_or_date() {
    let seconds = |value| parse(&[("retry-after", value)]).retry_after.map(TimeSpan::as_secs_ceil);
    assert_eq!(seconds("120"), Some(120));
    assert_eq!(seconds("Tue, 14 Nov 2023 22:13:50 GMT"), Some(30));
    assert_eq!(seconds("Tuesday, 14-Nov-23 22:13:50 GMT"), Some(30));
    assert_eq!(seconds("Tue, 14 Nov 2023 22:13:00 GMT"), Some(0), "a date in the past");
    assert_eq!(seconds("18446744073709551615"), Some(TimeSpan::MAX.as_secs_ceil()));
    for value in ["", "-1", "+1", ".", "1.", ".5", "1.5.5", "1,5", "soon", "Tue, 99 Nov 2023 22:13:50 GMT"] {
        assert_eq!(seconds(value), None, "{value}");
    }
    let several = parse(&[("retry-after", "1"), ("retry-after", "9"), ("retry-after", "soon")]);
    assert_eq!(several.retry_after, Some(TimeSpan::from_secs(9)), "the longest");
    let both = parse(&[("x-ratelimit-retry-after", "7"), ("retry-after", "9")]);
    assert_eq!(both.retry_after, Some(TimeSpan::from_secs(9)));
    assert_eq!(parse(&[("x-ratelimit-retry-after", "7")]).retry_after, Some(TimeSpan::from_secs(7)));
}

#[test]
fn numbers_with_a_fraction_or_beyond_the_range_are_rounded_to_their_safe_side() {
    let seconds = |value| parse(&[("retry-after", value)]).retry_after.map(TimeSpan::as_secs_ceil);
    assert_eq!((seconds("1.5"), seconds("0.001"), seconds("7.0")), (Some(2), Some(1), Some(7)));
    for huge in ["18446744073709551616", "999999999999999999999999999999", "18446744073709551615.5"] {
        assert_eq!(seconds(huge), Some(TimeSpan::MAX.as_secs_ceil()), "{huge}");
    }
    let remaining = ("x-ratelimit-remaining", "0.9");
    let parsed = parse(&[("x-ratelimit-limit", "100.9"), remaining, ("x-ratelimit-reset", "1700000029.2")]);
    assert_eq!(parsed.limits, [limit(100, 0, 30)]);
    let dictionary = parse(&[("ratelimit", "limit=100, remaining=0.9, reset=29.2")]);
    assert_eq!(dictionary.limits, [limit(100, 0, 30)]);
    let expected = AdvertisedLimit { quota: None, name: Some("a".to_owned()), ..limit(0, 0, 30) };
    assert_eq!(parse(&[("ratelimit", r#""a";r=0.9;t=29.2"#)]).limits, [expected]);
}

#[test]
fn bad_values_are_ignored_and_good_ones_kept() {
    assert_eq!(parse(&[]), AdvertisedLimits::default());
    for (name, value) in [
        ("ratelimit", r#""a";r=-1;t=x"#),
        ("ratelimit", r#""a;r=1"#),
        ("ratelimit", "limit=(1 2), reset=?1"),
        ("ratelimit", "a, b"),
        ("ratelimit-policy", r#"("a" "b");q=1"#),
        ("ratelimit-policy", "?1, 1.5"),
        ("ratelimit-limit", "many"),
        ("x-ratelimit-limit", "unlimited"),
        ("x-ratelimit-reset", "2023-11-14"),
    ] {
        assert_eq!(parse(&[(name, value)]), AdvertisedLimits::default(), "{name}: {value}");
    }
    let parsed = parse(&[("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", "-5")]);
    assert_eq!(parsed.limits, [AdvertisedLimit { remaining: None, reset_after: None, ..limit(100, 0, 0) }]);
}

#[test]
fn parse_reset_as_a_unix_time_in_any_unit_is_the_time_until_then() {
    for (value, seconds) in [
        ("1700000030000", 30),
        ("1700000029999.5", 30),
        ("1700000030000000", 30),
        ("1700000029999999001", 30),
        ("1600000000000", 0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
        ("999999999", 999_999_999),
        ("1700000030", 30),
        // Beyond the range.
        ("99999999999999999999999999", Timestamp::MAX.as_micros().div_ceil(1_000_000) - 1_700_000_000),
    ] {
        let parsed = parse(&[("x-ratelimit-limit", "100"), ("x-ratelimit-reset", value)]);
        let reset = parsed.limits[0].reset_after.map(|span| span.as_micros().div_ceil(1_000_000));
        assert_eq!(reset, Some(seconds), "{value}");
    }
    let dictionary = parse(&[("ratelimit", "limit=100, remaining=0, reset=1700000030000")]);
    assert_eq!(dictionary.limits, [limit(100, 0, 30)]);
}

#[test]
fn parse_too_many_limits_ignores_the_rest() {
    let members: Vec<_> = (0..10_000).map(|n| format!("\"{n}\";r=1;t=1")).collect();
    let value = HeaderValue::from_str(&members.join(",")).unwrap();
    let headers = HeaderMap::from_iter([(names::RATELIMIT, value.clone()), (names::POLICY, value)]);
    assert_eq!(AdvertisedLimits::parse(&headers, NOW).limits.len(), MAX_LIMITS);
}

#[test]
fn times_of_a_server_whose_clock_differs_are_read_by_its_date() {
    // By this clock it is 22:13:20.
    for (date, retry_after, reset) in [
        ("Tue, 14 Nov 2023 22:13:19 GMT", 30, 30),
        ("Tue, 14 Nov 2023 22:13:22 GMT", 30, 30),
        ("Tue, 14 Nov 2023 22:10:20 GMT", 210, 30),
        ("Tue, 14 Nov 2023 22:13:40 GMT", 10, 10),
        ("Tue, 14 Nov 2023 23:13:20 GMT", 0, 0),
        ("yesterday", 30, 30),
    ] {
        let parsed = parse(&[
            ("date", date),
            ("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT"),
            ("x-ratelimit-reset", "1700000030"),
        ]);
        assert_eq!(parsed.retry_after, Some(TimeSpan::from_secs(retry_after)), "{date}");
        assert_eq!(parsed.limits[0].reset_after, Some(TimeSpan::from_secs(reset)), "{date}");
    }
    let cached = parse(&[
        ("date", "Tue, 14 Nov 2023 22:03:20 GMT"),
        ("age", "600"),
        ("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT"),
    ]);
    assert_eq!(cached.retry_after, Some(TimeSpan::from_secs(30)));
    let relative = parse(&[("date", "Tue, 14 Nov 2023 23:13:20 GMT"), ("x-ratelimit-reset", "30")]);
    assert_eq!(relative.limits[0].reset_after, Some(TimeSpan::from_secs(30)));
}
