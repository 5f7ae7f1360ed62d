//! Finds the servers: asks Sentinels for the primary, or nodes of a cluster for the hash slots.

use redis::{Cmd, Value};

use super::connect::RedisConnector;
use super::error::ConnectError;
use crate::endpoint::{Deployment, ServerAddress};

/// What was found.
#[derive(Debug)]
pub(crate) enum Topology {
    /// The server that has all slots.
    Primary(ServerAddress),
    /// First slot, last slot and primary.
    Ranges(Vec<(u16, u16, ServerAddress)>),
}

/// Finds the servers. `known` are further nodes of a cluster that may respond.
pub(crate) async fn discover(
    connector: &RedisConnector,
    deployment: &Deployment,
    known: Vec<ServerAddress>,
) -> Result<Topology, ConnectError> {
    match deployment {
        Deployment::Single(address) => Ok(Topology::Primary(address.clone())),
        Deployment::Sentinel { sentinels, service } => {
            let ask =
                |address: ServerAddress| async move { ask_sentinel(connector, &address, service).await };
            first_reply(sentinels.clone(), ask).await.map(Topology::Primary)
        }
        Deployment::Cluster(seeds) => {
            let mut nodes = known;
            // A node that is cut off from the others has an old view: ask a different one each time.
            fastrand::shuffle(&mut nodes);
            nodes.extend(seeds.iter().cloned());
            let ask = |address: ServerAddress| async move { ask_cluster(connector, &address).await };
            first_reply(nodes, ask).await.map(Topology::Ranges)
        }
    }
}

/// Asks one after the other until one knows.
async fn first_reply<T, F: Future<Output = Result<T, ConnectError>>>(
    addresses: Vec<ServerAddress>,
    ask: impl Fn(ServerAddress) -> F,
) -> Result<T, ConnectError> {
    let mut failed = None;
    for address in addresses {
        match ask(address).await {
            Ok(found) => return Ok(found),
            Err(error) if failed.as_ref().is_some_and(ConnectError::is_permanent) => drop(error),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or(ConnectError::NoPrimary { service: String::new() }))
}

async fn query(
    connector: &RedisConnector,
    address: &ServerAddress,
    command: &Cmd,
) -> Result<Value, ConnectError> {
    let mut connection = connector.connect(address, || {}).await?;
    let reply = command.query_async(connection.commands());
    match tokio::time::timeout(super::PROBE_INTERVAL * 2, reply).await {
        Ok(reply) => reply.map_err(|error| ConnectError::from_redis(address, error)),
        Err(_) => Err(ConnectError::Timeout { address: address.clone() }),
    }
}

/// Asks one Sentinel for the primary of `service`.
pub(crate) async fn ask_sentinel(
    connector: &RedisConnector,
    address: &ServerAddress,
    service: &str,
) -> Result<ServerAddress, ConnectError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(service);
    // Most Sentinels have no login, and reject one.
    let reply = match query(&connector.anonymous(), address, &command).await {
        Err(ConnectError::Login { .. } | ConnectError::Permission { .. }) => {
            query(&connector.without_database(), address, &command).await?
        }
        reply => reply?,
    };
    let unknown = || ConnectError::NoPrimary { service: service.to_owned() };
    let (host, port): (String, u16) = redis::from_redis_value(reply).map_err(|_| unknown())?;
    Ok(ServerAddress { host, port })
}

async fn ask_cluster(
    connector: &RedisConnector,
    address: &ServerAddress,
) -> Result<Vec<(u16, u16, ServerAddress)>, ConnectError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = query(connector, address, &command).await?;
    parse_slots(&reply, address)
        .filter(|ranges| !ranges.is_empty())
        .ok_or_else(|| ConnectError::NoSlots { address: address.clone() })
}

/// Parses `[first, last, [host, port, …], replicas…]…`. A host that the node does not know is that of the node itself.
fn parse_slots(reply: &Value, from: &ServerAddress) -> Option<Vec<(u16, u16, ServerAddress)>> {
    let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).ok();
    let Value::Array(ranges) = reply else { return None };
    let range = |range: &Value| {
        let Value::Array(fields) = range else { return None };
        let [first, last, Value::Array(primary), ..] = fields.as_slice() else { return None };
        let [host, port, ..] = primary.as_slice() else { return None };
        let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?;
        let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| from.host.clone());
        Some((number(first)?, number(last)?, ServerAddress { host, port: number(port)? }))
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_reply_without_a_host_means_the_host_that_was_asked() {
        let from = ServerAddress { host: "cache".to_owned(), port: 7000 };
        let node =
            |host: Value, port| Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let reply = Value::Array(vec![
            range(0, 10, node(Value::BulkString(b"10.0.0.1".to_vec()), 7001)),
            range(11, 20, node(Value::Nil, 7002)),
        ]);
        let address = |host: &str, port| ServerAddress { host: host.to_owned(), port };
        let expected = vec![(0, 10, address("10.0.0.1", 7001)), (11, 20, address("cache", 7002))];
        assert_eq!(parse_slots(&reply, &from), Some(expected));
        assert_eq!(parse_slots(&Value::Okay, &from), None);
    }
}
