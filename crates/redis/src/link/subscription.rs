//! A channel, subscribed to again whenever the connection was lost or calls go to another server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::connect::RedisConnector;
use super::{LinkState, PROBE_INTERVAL};

/// A subscription that is silent is tested this often, and lost if there is no reply for as long again.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// What happens on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChannelEvent {
    /// From now on every message arrives.
    Subscribed,
    /// A message.
    Message(Vec<u8>),
    /// Messages may be missed until the next `Subscribed`.
    Lost,
}

/// The receiver has ended.
struct ReceiverGone;

/// Subscribes until the receiver is dropped.
pub(super) async fn run(
    shared: Arc<LinkState>,
    connector: Arc<RedisConnector>,
    channel: String,
    events: mpsc::Sender<ChannelEvent>,
) {
    while !events.is_closed() {
        if forward(&shared, &connector, &channel, &events).await.is_err() {
            return;
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

/// Forwards messages until the connection is lost or no call is routed to the server any more: an old primary that is cut off
/// still responds, but gets no messages. Any primary will do: in a cluster, messages reach all nodes.
async fn forward(
    shared: &LinkState,
    connector: &RedisConnector,
    channel: &str,
    events: &mpsc::Sender<ChannelEvent>,
) -> Result<(), ReceiverGone> {
    let server = shared.routes.load().servers().iter().find(|server| server.is_available()).cloned();
    let Some(server) = server else { return Ok(()) };
    let Ok(mut connection) = connector.connect_subscriber(&server.address).await else { return Ok(()) };
    if !matches!(tokio::time::timeout(PING_INTERVAL, connection.subscribe(channel)).await, Ok(Ok(()))) {
        return Ok(());
    }
    let send = async |event| events.send(event).await.map_err(|_| ReceiverGone);
    send(ChannelEvent::Subscribed).await?;
    let (mut commands, mut messages) = connection.split();
    let (mut route_checks, mut pings) = (interval(PROBE_INTERVAL), interval(PING_INTERVAL));
    for timer in [&mut route_checks, &mut pings] {
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        timer.reset();
    }
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => {
                    send(ChannelEvent::Message(message.get_payload_bytes().to_vec())).await?;
                    pings.reset();
                }
                None => break,
            },
            _ = route_checks.tick() => {
                if !shared.routes.load().servers().iter().any(|known| known.address == server.address) {
                    break;
                }
            }
            _ = pings.tick() => {
                let pong = tokio::time::timeout(PING_INTERVAL, commands.ping::<redis::Value>()).await;
                if !matches!(pong, Ok(Ok(_))) {
                    break;
                }
            }
            () = events.closed() => return Err(ReceiverGone),
        }
    }
    send(ChannelEvent::Lost).await
}
