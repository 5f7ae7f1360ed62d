//! Which servers can be reached, at the start: an operator who has made a mistake in a URL learns of it before the first request.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::connect::Connector;
use super::outage::describe_connect_error;
use super::server::{Server, UpstreamGroup};

/// An upstream none of whose servers can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachableUpstream {
    /// Its name.
    pub name: String,
    /// A server, as `host:port`.
    pub server: String,
    /// Why no connection to it was opened.
    pub cause: String,
}

/// Connects to all servers at once, each within `timeout`. Returns the upstreams of which none can be reached.
pub(crate) async fn unreachable(
    upstreams: &[UpstreamGroup],
    connector: &Connector,
    timeout: Duration,
) -> Vec<UnreachableUpstream> {
    let mut connecting = JoinSet::new();
    for (index, upstream) in upstreams.iter().enumerate() {
        let timeout = timeout.min(upstream.resilience.timeouts.connect);
        for server in &upstream.servers {
            let (connector, server) = (connector.clone(), Arc::clone(server));
            connecting.spawn(async move {
                let connected = connector.connect(&server, timeout).await;
                (index, connected.map(drop).map_err(|error| (server, error)))
            });
        }
    }
    let mut reached = vec![false; upstreams.len()];
    let mut failed = BTreeMap::new();
    while let Some(connected) = connecting.join_next().await {
        match connected {
            Ok((index, Ok(()))) => reached[index] = true,
            Ok((index, Err(failure))) => drop(failed.insert(index, failure)),
            // A task that panicked says nothing.
            Err(_) => {}
        }
    }
    let unreachable = failed.into_iter().filter(|(index, _)| !reached[*index]);
    let describe = |(index, (server, error)): (usize, (Arc<Server>, io::Error))| UnreachableUpstream {
        name: upstreams[index].name.clone(),
        server: server.addr.clone(),
        cause: describe_connect_error(&error),
    };
    unreachable.map(describe).collect()
}
