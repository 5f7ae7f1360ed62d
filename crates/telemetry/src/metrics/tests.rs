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

/// A client's key, as the policy makes it.
fn client(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    [&[b'u'][..], &u32::try_from(name.len()).unwrap().to_le_bytes(), name].concat()
}

struct World {
    metrics: Arc<Metrics>,
    meters: [MetricsHandle; 2],
    slots: RuleSlots,
    default: RuleId,
    now: Timestamp,
    seen: HashMap<String, u64>,
    sum: u64,
}

impl World {
    fn new() -> Self {
        let metrics = Metrics::new(2, NOW);
        let plan = plan(3);
        let slots = metrics.apply(&plan);
        let meters = [metrics.meter(), metrics.meter()];
        let default = plan.rate_limits.default.unwrap().id;
        Self { metrics, meters, slots, default, now: NOW, seen: HashMap::new(), sum: 0 }
    }

    fn refuse(&mut self, name: &str, times: u64) {
        for n in 0..times {
            self.now = self.now + tidegate_core::TimeSpan::from_micros(50);
            let core = usize::try_from(n % 2).unwrap();
            self.meters[core].decided(DecisionKind::Rejected, 1_000);
            self.meters[core].refused(&self.slots, self.default, &client(name), self.now);
        }
    }

    /// Scrapes, and holds every series against what it was before.
    fn scrape(&mut self) -> HashMap<String, u64> {
        self.now = self.now + tidegate_core::TimeSpan::from_secs(15);
        let text = self.metrics.page(MetricsReader::Scraper, self.now).into_text();
        let series = exceeded(&text);
        for (name, value) in &series {
            let before = self.seen.get(name).copied().unwrap_or_default();
            assert!(*value >= before, "{name} went from {before} to {value}");
        }
        let sum = series.values().sum();
        assert!(sum >= self.sum, "the sum went from {} to {sum}", self.sum);
        (self.sum, self.seen) = (sum, series.clone());
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
fn every_refusal_is_in_one_series() {
    let mut world = World::new();
    world.refuse("bob", 50);
    world.refuse("ann", 7);
    let series = exceeded(&world.metrics.page(MetricsReader::Person, world.now).into_text());
    assert_eq!(series["user:bob default"] + series["user:ann default"] + series["other default"], 57);
    assert!(series["user:bob default"] >= 49, "a client is named at once while there is room");
    assert_eq!(series["other endpoint:/api/v1/things/2"], 0, "a rule that refuses nobody says so");
}

#[test]
fn a_series_begins_at_zero_for_those_who_remember() {
    let mut world = World::new();
    world.scrape();
    world.refuse("bob", 50);
    let first = world.scrape();
    assert_eq!((first["user:bob default"], first["other default"]), (0, 1));
    let second = world.scrape();
    assert_eq!((second["user:bob default"], second["other default"]), (49, 1));
}

#[test]
fn before_the_first_scrape_there_is_nothing_to_remember() {
    let mut world = World::new();
    world.refuse("bob", 50);
    assert_eq!(world.scrape()["user:bob default"], 49);
}

/// What Prometheus adds up: the growth of every series from its first value on.
#[test]
fn growth_adds_up_to_what_was_refused_however_clients_come_and_go() {
    let mut world = World::new();
    let (mut grown, mut last, mut refused) = (0, world.scrape(), 0);
    let mut scrape = |world: &mut World| {
        let series = world.scrape();
        for (name, value) in &series {
            grown += last.get(name).map_or(0, |before| value - before);
        }
        assert!(series.keys().filter(|name| name.starts_with("user:")).count() <= top_clients::MOST);
        last = series;
        grown
    };
    for generation in 0..20 {
        for n in 0..60 {
            world.refuse(&format!("client-{generation}-{n}"), 40);
            refused += 40;
        }
        world.refuse("always", 100);
        refused += 100;
        scrape(&mut world);
    }
    // The last newcomers are shown whole one scrape later.
    assert_eq!(scrape(&mut world), refused);
    let total =
        exceeded(&world.metrics.page(MetricsReader::Person, world.now).into_text()).values().sum::<u64>();
    assert_eq!(total, refused, "nothing is lost from the sum either");
}

#[test]
fn the_heaviest_take_the_places_of_others() {
    let mut world = World::new();
    for n in 0..1_000 {
        world.refuse(&format!("light-{n}"), 1);
    }
    world.scrape();
    for _ in 0..3 {
        for n in 0..10 {
            world.refuse(&format!("heavy-{n}"), 500);
        }
        world.scrape();
    }
    let series = world.scrape();
    for n in 0..10 {
        assert!(series[&format!("user:heavy-{n} default")] >= 500, "{series:?}");
    }
}

#[test]
fn a_million_clients_leave_series_bounded_and_sums_exact() {
    let mut world = World::new();
    let mut refused = 0;
    for n in 0..1_000_000_u64 {
        world.refuse(&format!("{n}"), 1);
        refused += 1;
        if n % 100 == 0 {
            world.refuse("abuser", 3);
            refused += 3;
        }
        if n % 50_000 == 0 {
            assert!(world.scrape().len() <= top_clients::MOST + 4 + 1);
        }
    }
    world.scrape();
    let series = world.scrape();
    assert_eq!(series.values().sum::<u64>(), refused);
    let named = series.iter().filter(|(name, _)| name.starts_with("user:"));
    assert_eq!(named.max_by_key(|(_, count)| **count).unwrap().0, "user:abuser default");
}

#[test]
fn rules_keep_their_counts_over_a_reload() {
    let mut world = World::new();
    world.refuse("bob", 5);
    let reloaded = compile(
        "policy.yaml",
        b"rate_limits: { default: { requests: 7, window: 1h }, tenant: { requests: 9, window: 1 } }",
        &NoFiles,
    );
    world.slots = world.metrics.apply(&reloaded.unwrap().plan);
    world.refuse("bob", 5);
    let text = world.metrics.page(MetricsReader::Person, world.now).into_text();
    assert_eq!(
        exceeded(&text).iter().filter(|(name, _)| name.ends_with(" default")).map(|(_, n)| n).sum::<u64>(),
        10
    );
    assert!(text.contains("rate_limit_limit{rule=\"default\",window=\"1h\"} 7\n"), "{text}");
    assert!(!text.contains("rate_limit_limit{rule=\"endpoint"), "rules that are gone have no limit");
}

#[test]
fn decisions_responses_and_tries_are_counted() {
    let World { metrics, meters: [meter, other], slots, default, .. } = World::new();
    meter.decided(DecisionKind::Admitted, 900);
    other.decided(DecisionKind::Admitted, 6_000_000);
    meter.would_reject(&slots, default);
    meter.responded(Some(200));
    meter.responded(Some(503));
    meter.responded(None);
    let upstream = metrics.upstream("api");
    meter.tried(&upstream, AttemptResult::Answered(200), 3_000_000);
    other.tried(&upstream, AttemptResult::Unreachable, 0);
    let text = metrics.page(MetricsReader::Person, NOW).into_text();
    for line in [
        "rate_limit_requests_total{decision=\"admitted\"} 2",
        "rate_limit_latency_bucket{le=\"0.001\"} 1",
        "rate_limit_latency_bucket{le=\"5\"} 1",
        "rate_limit_latency_bucket{le=\"10\"} 2",
        "rate_limit_latency_count 2",
        "rate_limit_shadow_exceeded_total{rule=\"default\"} 1",
        "tidegate_responses_total{code=\"2xx\"} 1",
        "tidegate_responses_total{code=\"gone\"} 1",
        "tidegate_upstream_requests_total{upstream=\"api\",code=\"2xx\"} 1",
        "tidegate_upstream_failures_total{upstream=\"api\",reason=\"unreachable\"} 1",
        "tidegate_upstream_latency_seconds_bucket{upstream=\"api\",le=\"0.005\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    #[cfg(target_os = "linux")]
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
}
