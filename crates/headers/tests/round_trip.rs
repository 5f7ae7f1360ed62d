//! Written headers parse to the same limits, and no header makes the parser panic.

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use sfv::{FieldType, List, Parser};
use tidegate_core::{LimitReport, LimitUnit, TimeSpan, Timestamp};
use tidegate_headers::{
    AdvertisedLimit, AdvertisedLimits, HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders,
    write_retry_after,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

/// A report without its name.
#[derive(Clone, Debug)]
struct Numbers {
    quota: u64,
    window: Option<TimeSpan>,
    remaining: u64,
    reset_after: TimeSpan,
    retry_after: Option<TimeSpan>,
    unit: LimitUnit,
}

impl Numbers {
    fn named<'n>(&self, name: &'n str) -> LimitReport<'n> {
        let Self { quota, window, remaining, reset_after, retry_after, unit } = self.clone();
        LimitReport { name, quota, window, remaining, reset_after, retry_after, unit }
    }
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let span = || (0_u64..1_000_000_000 - 1).prop_map(TimeSpan::from_secs);
    let fraction = || (0_u64..1_000_000_000).prop_map(TimeSpan::from_micros);
    let time = move || prop_oneof![span(), fraction()];
    let unit = prop_oneof![
        Just(LimitUnit::Requests),
        Just(LimitUnit::Cost),
        Just(LimitUnit::ConcurrentRequests),
        any::<u64>().prop_map(LimitUnit::ContentBytes),
        (0_u64..1 << 20).prop_map(|kib| LimitUnit::ContentBytes(kib << 10)),
    ];
    let quota = prop_oneof![1_u64..1_000, 1..=LARGEST];
    (quota, proptest::option::of(span()), 0..=LARGEST, time(), proptest::option::of(time()), unit).prop_map(
        |(quota, window, remaining, reset_after, retry_after, unit)| Numbers {
            quota,
            window,
            remaining: remaining.min(quota),
            reset_after,
            retry_after,
            unit,
        },
    )
}

fn reports() -> impl Strategy<Value = Vec<(String, Numbers)>> {
    let name = prop_oneof!["[a-z/_-]{1,12}", "[ -~]{0,20}", any::<String>()];
    proptest::collection::vec((name, numbers()), 1..8)
}

fn write(styles: &[HeaderStyle], reports: &[LimitReport<'_>]) -> HeaderMap {
    let (mut headers, mut cache) = (RateLimitHeaders::default(), HeaderValueCache::default());
    let mut writer = HeaderWriter { styles, cache: &mut cache };
    writer.write_limits(&mut headers, NOW, &reports[0], reports);
    let mut map = HeaderMap::new();
    headers.insert_into(&mut map);
    map
}

/// The expected result for a report in a style with names.
fn named(report: &LimitReport<'_>) -> AdvertisedLimit {
    let longest = report.window.unwrap_or(TimeSpan::MAX);
    let reset = TimeSpan::from_secs(report.announced_reset().as_secs_ceil());
    AdvertisedLimit {
        name: Some(report.name.chars().filter(|c| matches!(c, ' '..='~')).collect()),
        quota: Some(report.quota),
        window: report.window,
        remaining: Some(report.remaining),
        reset_after: Some(reset.min(longest)),
        unit: Some(report.unit),
    }
}

/// The same in a style that reports one limit.
fn single(report: &LimitReport<'_>, style: HeaderStyle) -> AdvertisedLimit {
    let reset = report.announced_reset();
    let reset_after = match style {
        HeaderStyle::XRateLimitMs => TimeSpan::from_millis(reset.as_micros().div_ceil(1_000)),
        _ => TimeSpan::from_secs(reset.as_secs_ceil()),
    };
    AdvertisedLimit {
        quota: Some(report.quota),
        remaining: Some(report.remaining),
        reset_after: Some(reset_after),
        ..AdvertisedLimit::default()
    }
}

fn any_header() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
    let name = proptest::sample::select(vec![
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-retry-after",
        "x-rate-limit-reset",
        "retry-after",
    ]);
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        "[0-9]{1,25}".prop_map(String::into_bytes),
        r#"("[a-z]{0,3}"|[a-z]{1,9}|-?[0-9]{1,16})((;|,|, |=)("[a-z]{0,3}"|[a-z]{1,9}=?-?[0-9]{0,16})){0,8}"#
            .prop_map(String::into_bytes),
        "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT".prop_map(String::into_bytes),
    ];
    (name, bytes).prop_filter_map("is a header value", |(name, bytes)| {
        Some((HeaderName::from_static(name), HeaderValue::from_bytes(&bytes).ok()?))
    })
}

proptest! {
    #[test]
    fn headers_of_every_style_parse_as_written(reports in reports()) {
        let reports: Vec<_> = reports.iter().map(|(name, numbers)| numbers.named(name)).collect();
        for style in HeaderStyle::ALL {
            let advertised = AdvertisedLimits::parse(&write(&[style], &reports), NOW);
            if style == HeaderStyle::RateLimit {
                prop_assert_eq!(advertised.limits, reports.iter().map(named).collect::<Vec<_>>());
            } else {
                prop_assert_eq!(advertised.limits, [single(&reports[0], style)], "{:?}", style);
            }
            prop_assert_eq!(advertised.retry_after, None);
        }
        // The most informative style is read where there are several.
        let advertised = AdvertisedLimits::parse(&write(&HeaderStyle::ALL, &reports), NOW);
        prop_assert_eq!(advertised.limits, reports.iter().map(named).collect::<Vec<_>>());
    }

    #[test]
    fn structured_headers_are_canonical_structured_lists(reports in reports()) {
        let reports: Vec<_> = reports.iter().map(|(name, numbers)| numbers.named(name)).collect();
        let headers = write(&[HeaderStyle::RateLimit], &reports);
        for name in ["ratelimit", "ratelimit-policy"] {
            let list: List = Parser::new(headers[name].as_bytes()).parse().unwrap();
            prop_assert_eq!(list.serialize().unwrap(), headers[name].to_str().unwrap());
        }
    }

    #[test]
    fn retry_after_parses_as_written(seconds in any::<u64>()) {
        let mut headers = HeaderMap::new();
        write_retry_after(&mut headers, seconds, &[]);
        prop_assert_eq!(AdvertisedLimits::parse(&headers, NOW).retry_after, Some(TimeSpan::from_secs(seconds)));
    }

    #[test]
    fn arbitrary_headers_parse_without_panic(
        headers in proptest::collection::vec(any_header(), 0..12),
        now in any::<u64>(),
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        let _ = AdvertisedLimits::parse(&map, Timestamp::from_micros(now));
    }
}
