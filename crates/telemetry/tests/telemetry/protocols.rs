//! Log lines name the protocol.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_policy::SampleRate;
use tidegate_store::{Clock, ManualClock};
use tidegate_telemetry::{Log, LogSampling, Metrics, Protocol, RequestSummary, Telemetry};

#[test]
fn log_line_of_a_request_names_its_protocol() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let (log, lines) = Log::into_channel(Arc::clone(&clock));
    log.set_sampling(LogSampling { access: SampleRate::ALL, rejected: SampleRate::ALL });
    let telemetry = Telemetry::new(Metrics::new(1, clock.now()), log);
    for protocol in Protocol::ALL {
        let recorder = telemetry.recorder(protocol, Arc::clone(&clock));
        let mut record = recorder.start();
        record.describe(|| RequestSummary {
            method: "GET".to_owned(),
            host: "a".to_owned(),
            path: "/".to_owned(),
            peer: [127, 0, 0, 1].into(),
            version: "1.1",
            bytes: None,
        });
        record.set_response(200, None);
        drop(record);
        let line = lines.recv_timeout(Duration::ZERO).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["protocol"], &line["status"]), (&protocol.name().into(), &200.into()));
    }
}
