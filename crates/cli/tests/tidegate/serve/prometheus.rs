//! A real Prometheus scrapes a running gateway under a known load.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tidegate_testkit::client::{Connection, get};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{PolicyFile, Process};
use tidegate_testkit::wait::eventually_blocking;

use crate::program::ROOT;
use crate::serve::admin::{AdminGateway, policy_text};

/// Prometheus, reading the gateway four times a second.
struct Prometheus {
    _process: Process,
    address: String,
}

impl Prometheus {
    fn reading(gateway: &AdminGateway) -> Self {
        // If another process takes the port meanwhile, the test fails.
        let address = free_address().to_string();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus/tidegate.rules.yml");
        // The alert waits for minutes before it fires; the test shortens that.
        let rules = std::fs::read_to_string(rules).unwrap().replace("for: 5m", "for: 1s");
        std::fs::write(gateway.policy.beside("rules.yml"), rules).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms }}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n- job_name: tidegate\n  authorization: {{ credentials: {} }}\n  \
             static_configs: [{{ targets: ['{}'] }}]\n",
            gateway.token, gateway.admin
        );
        let file = gateway.policy.beside("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={file}"))
            .arg(format!("--storage.tsdb.path={}", gateway.policy.beside("prometheus")))
            .arg(format!("--web.listen-address={address}"));
        let process = Process::start(&mut command, "run `cargo xtask setup`");
        Self { _process: process, address }
    }

    /// The data of an API response; `None` while Prometheus does not respond.
    fn api(&self, path: &str) -> Option<Value> {
        let mut connection = Connection::open(&self.address).ok()?;
        let request = format!("GET /api/v1/{path} HTTP/1.1\r\nHost: prometheus\r\nConnection: close\r\n\r\n");
        let response = connection.send(request.as_bytes()).ok()?;
        serde_json::from_slice::<Value>(&response.body).ok()?.get("data").cloned()
    }

    /// Labels and values of the series that `query` finds.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
        let found = self.api(&format!("query?query={encoded}")).unwrap_or_default();
        let series = found["result"].as_array().cloned().unwrap_or_default();
        let value =
            |series: &Value| series["value"][1].as_str().and_then(|value| value.parse().ok()).unwrap();
        series.iter().map(|series| (series["metric"].clone(), value(series))).collect()
    }

    /// Waits until a condition holds.
    fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        // Prometheus is another process, so the test polls.
        eventually_blocking(what, || condition(self));
    }

    fn until_seen(&self, query: &str, value: f64) {
        self.until(&format!("{query} is {value}"), |prometheus| {
            prometheus.query(query).first().is_some_and(|(_, seen)| (seen - value).abs() < 0.5)
        });
    }
}

#[test]
fn prometheus_queries_report_rejections_top_clients_and_latency() {
    let gateway = AdminGateway::serve(PolicyFile::new(&policy_text("")));
    let prometheus = Prometheus::reading(&gateway);
    prometheus.until_seen("sum(rate_limit_requests_total)", 0.0);
    let (mut passed, mut refused) = (0_u32, 0_u32);
    let mut connection = Connection::open(&gateway.server.address).unwrap();
    for round in 0..8 {
        let mut send = |user: &str| match connection.get(&format!("X-User: {user}\r\n")).unwrap().status {
            200 => passed += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        };
        for (user, times) in [("heavy", 60), ("middling", 30), ("light", 15)] {
            (0..times).for_each(|_| send(user));
        }
        (0..105).for_each(|n| send(&format!("good-{round}-{n}")));
        // Prometheus scrapes every round before the next begins.
        prometheus.until_seen("sum(rate_limit_requests_total)", f64::from(passed + refused));
        prometheus.until_seen("sum(rate_limit_exceeded_total)", f64::from(refused));
    }
    let percent = prometheus
        .query("sum(rate(rate_limit_exceeded_total[5m])) / sum(rate(rate_limit_requests_total[5m])) * 100");
    let expected = f64::from(refused) / f64::from(passed + refused) * 100.0;
    assert!((percent[0].1 - expected).abs() < expected / 10.0, "{percent:?}, {expected}");
    let top = prometheus.query("topk(10, sum by (client_id) (rate(rate_limit_exceeded_total[1h])))");
    let named: Vec<_> = top.iter().map(|(labels, _)| labels["client_id"].as_str().unwrap()).collect();
    assert_eq!(named[..3], ["user:heavy", "user:middling", "user:light"], "{top:?}");
    assert!((1.8..2.2).contains(&(top[0].1 / top[1].1)), "{top:?}");
    let latency = prometheus.query("histogram_quantile(0.99, rate(rate_limit_latency_bucket[5m]))");
    assert!(latency.len() == 1 && latency[0].1 > 0.0, "{latency:?}");
    prometheus.until("the alarm is raised", |prometheus| {
        let alerts = prometheus.api("alerts").unwrap_or_default();
        let alerts = alerts["alerts"].as_array().cloned().unwrap_or_default();
        alerts.iter().any(|alert| {
            alert["labels"]["alertname"] == "TidegateHighRejectionRate" && alert["state"] == "firing"
        })
    });
    let memory = prometheus.query("process_resident_memory_bytes{job=\"tidegate\"}");
    assert!(memory[0].1 > 1e6, "{memory:?}");
    let table = prometheus.query("tidegate_store_table_bytes");
    assert!(table[0].1 > 1e6, "{table:?}");
}

#[test]
fn metrics_read_once_have_exact_numbers() {
    let gateway = AdminGateway::serve(PolicyFile::new(&policy_text("")));
    assert_eq!(gateway.send("GET", "/metrics", "").status, 200);
    let mut connection = Connection::open(&gateway.server.address).unwrap();
    // Alternating, so that neither client is alone when it gets its series.
    for _ in 0..8 {
        for user in ["ann", "bob"] {
            connection.get(&format!("X-User: {user}\r\n")).unwrap();
        }
    }
    let page = gateway.send("GET", "/metrics", "").text();
    for (client, count) in [("user:ann", 3), ("user:bob", 3), ("other", 0)] {
        let series =
            format!("rate_limit_exceeded_total{{client_id=\"{client}\",rule=\"default\"}} {count}\n");
        assert!(page.contains(&series), "{page}");
    }
}

#[test]
fn metrics_of_a_running_gateway_are_those_of_the_documentation() {
    let gateway = AdminGateway::serve(PolicyFile::new(&policy_text("")));
    for _ in 0..6 {
        get(&gateway.server.address, "X-User: bob\r\n");
    }
    // A gateway has counters in its own memory or in Redis, which need not be there.
    let shared = AdminGateway::serve(PolicyFile::new(&policy_text(&format!(
        "store: {{ url: 'redis://{}' }}\n",
        free_address()
    ))));
    let pages = [gateway, shared].map(|gateway| gateway.send("GET", "/metrics", "").text());
    let exposed: BTreeSet<_> = pages
        .iter()
        .flat_map(|page| page.lines())
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let documentation = std::fs::read_to_string(format!("{ROOT}/docs/observability.md")).unwrap();
    let rows = documentation.lines().skip_while(|line| !line.starts_with("| metric |")).skip(2);
    let names = rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let mut documented: BTreeSet<_> = names.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    // This gateway has no TLS listener.
    assert!(documented.remove("tidegate_certificate_expiry_timestamp_seconds"));
    assert_eq!(exposed, documented);
}
