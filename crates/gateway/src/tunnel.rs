//! Two connections that have agreed to speak something else than HTTP.

use std::rc::Rc;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::forward::Hop;
use crate::upstream::Lease;

/// Passes bytes both ways until both sides have ended. As long the server counts as busy, and the client keeps its
/// place.
pub(crate) async fn between(client: OnUpgrade, server: OnUpgrade, lease: Lease, hop: Rc<Hop>) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        // That either side breaks off is how tunnels end.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
    drop((lease, hop));
}
