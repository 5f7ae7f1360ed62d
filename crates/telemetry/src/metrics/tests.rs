use std::collections::HashMap;

use tidegate_policy::{NoFiles, compile};

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn plan(rules: usize) -> Plan {
    let endpoints: Vec<_> = (0..rules)
        .map(|n| format!("    /api/v1/things/{n}: {{ requests: {}, window: 60 }}\n", n + 1))
        .collect();
    let endpoints = endpoints.concat();
    let yaml = format!("rate_limits:\n  default: {{ requests: 100, window: 60 }}\n  endpoints:\n{endpoints}");
    compile("policy.yaml", yaml.as_bytes(), &NoFiles).unwrap().plan
}

/// The key that the policy makes for a user.
fn client(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    [&[b'u'][..], &u32::try_from(name.len()).unwrap().to_le_bytes(), name].concat()
}

struct Fixture {
    metrics: Arc<Metrics>,
    handles: [MetricsHandle; 2],
    slots: RuleSlots,
    default: RuleId,
    now: Timestamp,
    last_values: HashMap<String, u64>,
    sum: u64,
}

impl Fixture {
    fn new() -> Self {
        let metrics = Metrics::new(2, NOW);
        let plan = plan(3);
        let slots = metrics.apply(&plan);
        let handles = [metrics.handle(Protocol::Gateway), metrics.handle(Protocol::Gateway)];
        let default = plan.rate_limits.default.unwrap().id;
        Self { metrics, handles, slots, default, now: NOW, last_values: HashMap::new(), sum: 0 }
    }

    fn reject(&mut self, name: &str, times: u64) {
        for n in 0..times {
            self.now = self.now + tidegate_core::TimeSpan::from_micros(50);
            let core = usize::try_from(n % 2).unwrap();
            self.handles[core].record_decision(DecisionKind::Rejected, 1_000);
            self.handles[core].record_rejection(&self.slots, self.default, &client(name), self.now);
        }
    }

    /// Scrapes, and checks that no series has decreased.
    fn scrape(&mut self) -> HashMap<String, u64> {
        self.now = self.now + tidegate_core::TimeSpan::from_secs(15);
        let text = self.metrics.exposition(MetricsReader::Scraper, self.now).into_text();
        let series = exceeded(&text);
        for (name, value) in &series {
            let before = self.last_values.get(name).copied().unwrap_or_default();
            assert!(*value >= before, "{name} went from {before} to {value}");
        }
        let sum = series.values().sum();
        assert!(sum >= self.sum, "the sum went from {} to {sum}", self.sum);
        (self.sum, self.last_values) = (sum, series.clone());
        series
    }
}

fn exceeded(text: &str) -> HashMap<String, u64> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("rate_limit_exceeded_total{client_id=\""));
    let mut series = HashMap::new();
    for line in lines {
        let (labels, value) = line.rsplit_once("\"} ").unwrap();
        let name = labels.replace("\",rule=\"", " ");
        assert!(series.insert(name.clone(), value.parse().unwrap()).is_none(), "{name} is shown twice");
    }
    series
}

#[test]
fn rejection_is_counted_in_exactly_one_series() {
    let mut fixture = Fixture::new();
    fixture.reject("bob", 50);
    fixture.reject("ann", 7);
    let series = exceeded(&fixture.metrics.exposition(MetricsReader::OneShot, fixture.now).into_text());
    let of = |client: &str| series[&format!("{client} default")];
    let counts = (of("user:bob"), of("user:ann"), of("other"));
    assert_eq!(counts, (50, 7, 0), "a client has a series from its first rejection on while one is free");
    assert_eq!(series["other endpoint:/api/v1/things/2"], 0, "a rule without rejections is reported as zero");
}

#[test]
fn new_series_starts_at_zero_for_a_scraper() {
    let mut fixture = Fixture::new();
    fixture.scrape();
    fixture.reject("bob", 50);
    let first = fixture.scrape();
    assert_eq!((first["user:bob default"], first["other default"]), (0, 0));
    let second = fixture.scrape();
    assert_eq!((second["user:bob default"], second["other default"]), (50, 0));
}

#[test]
fn series_at_the_first_scrape_has_its_whole_count() {
    let mut fixture = Fixture::new();
    fixture.reject("bob", 50);
    assert_eq!(fixture.scrape()["user:bob default"], 50);
}

/// Adds up the growth of every series from its first value on, as Prometheus does.
#[test]
fn series_growth_with_changing_clients_adds_up_to_all_rejections() {
    let mut fixture = Fixture::new();
    let (mut grown, mut last, mut rejected) = (0, fixture.scrape(), 0);
    let mut scrape = |fixture: &mut Fixture| {
        let series = fixture.scrape();
        for (name, value) in &series {
            grown += last.get(name).map_or(0, |before| value - before);
        }
        assert!(series.keys().filter(|name| name.starts_with("user:")).count() <= top_clients::MAX_SERIES);
        last = series;
        grown
    };
    for generation in 0..20 {
        for n in 0..60 {
            fixture.reject(&format!("client-{generation}-{n}"), 40);
            rejected += 40;
        }
        fixture.reject("always", 100);
        rejected += 100;
        scrape(&mut fixture);
    }
    // The newest series report their whole count one scrape later.
    assert_eq!(scrape(&mut fixture), rejected);
    let total = exceeded(&fixture.metrics.exposition(MetricsReader::OneShot, fixture.now).into_text())
        .values()
        .sum::<u64>();
    assert_eq!(total, rejected, "nothing is lost from the sum either");
}

#[test]
fn client_with_more_rejections_replaces_lighter_client() {
    let mut fixture = Fixture::new();
    for n in 0..1_000 {
        fixture.reject(&format!("light-{n}"), 1);
    }
    fixture.scrape();
    for _ in 0..3 {
        for n in 0..10 {
            fixture.reject(&format!("heavy-{n}"), 500);
        }
        fixture.scrape();
    }
    let series = fixture.scrape();
    for n in 0..10 {
        assert!(series[&format!("user:heavy-{n} default")] >= 500, "{series:?}");
    }
}

#[test]
fn series_of_a_million_clients_are_bounded_and_add_up() {
    let mut fixture = Fixture::new();
    let mut rejected = 0;
    for n in 0..1_000_000_u64 {
        fixture.reject(&format!("{n}"), 1);
        rejected += 1;
        if n % 100 == 0 {
            fixture.reject("abuser", 3);
            rejected += 3;
        }
        if n % 50_000 == 0 {
            assert!(fixture.scrape().len() <= top_clients::MAX_SERIES + 4 + 1);
        }
    }
    fixture.scrape();
    let series = fixture.scrape();
    assert_eq!(series.values().sum::<u64>(), rejected);
    let named = series.iter().filter(|(name, _)| name.starts_with("user:"));
    assert_eq!(named.max_by_key(|(_, count)| **count).unwrap().0, "user:abuser default");
}

#[test]
fn rule_counts_after_reload_are_kept() {
    let mut fixture = Fixture::new();
    fixture.reject("bob", 5);
    let reloaded = compile(
        "policy.yaml",
        b"rate_limits: { default: { requests: 7, window: 1h }, tenant: { requests: 9, window: 1 } }",
        &NoFiles,
    );
    fixture.slots = fixture.metrics.apply(&reloaded.unwrap().plan);
    fixture.reject("bob", 5);
    let text = fixture.metrics.exposition(MetricsReader::OneShot, fixture.now).into_text();
    assert_eq!(
        exceeded(&text).iter().filter(|(name, _)| name.ends_with(" default")).map(|(_, n)| n).sum::<u64>(),
        10
    );
    assert!(text.contains("rate_limit_limit{rule=\"default\",window=\"1h\"} 7\n"), "{text}");
    assert!(!text.contains("rate_limit_limit{rule=\"endpoint"), "removed rules have no limit");
}

#[test]
fn decisions_responses_and_attempts_are_counted() {
    let Fixture { metrics, handles: [handle, other], slots, default, .. } = Fixture::new();
    handle.record_decision(DecisionKind::Admitted, 900);
    other.record_decision(DecisionKind::Admitted, 6_000_000);
    handle.record_shadow_rejection(&slots, default);
    handle.record_response(Some(200));
    handle.record_response(Some(503));
    handle.record_response(None);
    let upstream = metrics.upstream("api");
    handle.record_attempt(&upstream, AttemptResult::Response(200), 3_000_000);
    other.record_attempt(&upstream, AttemptResult::Unreachable, 0);
    let text = metrics.exposition(MetricsReader::OneShot, NOW).into_text();
    for line in [
        "rate_limit_requests_total{decision=\"admitted\",protocol=\"gateway\"} 2",
        "rate_limit_latency_bucket{protocol=\"gateway\",le=\"0.001\"} 1",
        "rate_limit_latency_bucket{protocol=\"gateway\",le=\"5\"} 1",
        "rate_limit_latency_bucket{protocol=\"gateway\",le=\"10\"} 2",
        "rate_limit_latency_count{protocol=\"gateway\"} 2",
        "rate_limit_shadow_exceeded_total{rule=\"default\"} 1",
        "tidegate_responses_total{code=\"2xx\",protocol=\"gateway\"} 1",
        "tidegate_responses_total{code=\"gone\",protocol=\"gateway\"} 1",
        "tidegate_upstream_requests_total{upstream=\"api\",code=\"2xx\"} 1",
        "tidegate_upstream_failures_total{upstream=\"api\",reason=\"unreachable\"} 1",
        "tidegate_upstream_latency_seconds_bucket{upstream=\"api\",le=\"0.005\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    #[cfg(target_os = "linux")]
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
}
