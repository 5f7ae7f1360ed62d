use super::simulation::StormConfig;
use super::{PROTECTIONS, chart, check, picture_path, reports, simulation};

#[test]
fn storm_with_budget_peaks_far_below_storm_without_and_recovers() {
    let config = StormConfig::default();
    let reports = reports(&config).unwrap();
    check(&reports).unwrap();
    // The picture in the documentation is of this code.
    let picture = std::fs::read_to_string(picture_path()).unwrap();
    assert!(picture == chart::render(&config, &reports), "run `cargo run --release -p bench -- storm`");
}

#[test]
fn storm_of_10_000_requests_that_all_fail_sends_at_most_a_tenth_more_plus_the_minimum() {
    let config = StormConfig { seconds: 10, outage: 0..100, ..StormConfig::default() };
    let mut seen = Vec::new();
    for protection in &PROTECTIONS {
        let report = simulation::run(&config, protection).unwrap();
        let attempts: u64 = report.attempts.iter().sum();
        assert!((9_500..10_500).contains(&report.requests), "{}", report.requests);
        seen.push((attempts, report.requests));
    }
    let (attempts, requests) = seen[0];
    assert!(attempts > 3 * requests, "{attempts} attempts of {requests} requests without a budget");
    let (attempts, requests) = seen[2];
    let minimum = 10 * (config.seconds + 1);
    assert!(attempts <= requests * 11 / 10 + minimum, "{attempts} attempts of {requests} requests");
    let (attempts, _) = seen[3];
    assert!(attempts < 100, "{attempts} attempts in spite of the breaker");
}
