//! Examines the servers of a store and says what to change.

mod report;
mod server;

use tidegate_store::Clock;

pub use self::report::{Diagnosis, DiagnosisItem, DiagnosisLevel};
use self::server::ServerExamination;
use crate::config::RedisConfig;
use crate::endpoint::{Deployment, ServerAddress};
use crate::link::{RedisConnector, Topology, ask_sentinel, discover};

/// Connects to the servers of `config` and examines each. Writes one key, which expires after a millisecond.
pub async fn diagnose(config: &RedisConfig, clock: &dyn Clock) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let deployment = &config.endpoint.deployment;
    let connector = match RedisConnector::new(config) {
        Ok(connector) => connector,
        Err(error) => {
            diagnosis.problem("certificates", error.to_string());
            return diagnosis;
        }
    };
    if let Deployment::Sentinel { sentinels, service } = deployment {
        examine_sentinels(&connector, sentinels, service, &mut diagnosis).await;
    }
    let servers = match discover(&connector, deployment, Vec::new()).await {
        Ok(Topology::Primary(address)) => vec![address],
        Ok(Topology::Ranges(ranges)) => {
            examine_slots(&ranges, &mut diagnosis);
            let mut servers: Vec<ServerAddress> = ranges.into_iter().map(|(_, _, address)| address).collect();
            servers.sort_by(|left, right| (&left.host, left.port).cmp(&(&right.host, right.port)));
            servers.dedup();
            servers
        }
        Err(error) => {
            diagnosis.problem("connection", error.to_string());
            return diagnosis;
        }
    };
    for address in servers {
        ServerExamination { config, connector: &connector, clock, address: &address }
            .run(&mut diagnosis)
            .await;
    }
    diagnosis
}

fn examine_slots(ranges: &[(u16, u16, ServerAddress)], diagnosis: &mut Diagnosis) {
    let covered: u32 = ranges.iter().map(|(first, last, _)| u32::from(last.saturating_sub(*first)) + 1).sum();
    if covered == 16_384 {
        diagnosis.ok("hash slots", "all 16,384 are assigned");
    } else {
        let advice = "check `redis-cli --cluster check` and assign them with `--cluster fix`";
        diagnosis.problem(
            "hash slots",
            format!("{} of 16,384 have no server; {advice}", 16_384_u32.saturating_sub(covered)),
        );
    }
}

async fn examine_sentinels(
    connector: &RedisConnector,
    sentinels: &[ServerAddress],
    service: &str,
    diagnosis: &mut Diagnosis,
) {
    let mut primaries = Vec::new();
    for address in sentinels {
        match ask_sentinel(connector, address, service).await {
            Ok(primary) => primaries.push(primary),
            Err(error) => {
                diagnosis.advice("sentinel", format!("{error}; start it, or remove it from the URL"));
            }
        }
    }
    primaries.dedup();
    match primaries.as_slice() {
        [] => diagnosis.problem(
            "sentinel",
            format!(
                "no Sentinel knows the primary of `{service}`; check the name after the last `/` of the URL"
            ),
        ),
        [primary] => {
            diagnosis.ok("sentinel", format!("the primary of `{service}` is {primary}"));
            if sentinels.len() < 3 {
                diagnosis.advice("sentinel", "fewer than three Sentinels are in the URL; list all of them");
            }
        }
        _ => diagnosis.problem(
            "sentinel",
            "the Sentinels name different primaries; a failover is in progress, or the network is divided",
        ),
    }
}
