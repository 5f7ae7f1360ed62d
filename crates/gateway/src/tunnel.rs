//! Two connections that have agreed to speak something else than HTTP.

use std::rc::Rc;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::guests::Guest;
use crate::upstream::Lease;

/// A client's end of a tunnel, if its request is answered with one.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) client: OnUpgrade,
    pub(crate) guest: Rc<Guest>,
}

/// Passes bytes both ways until both sides have ended. As long the server counts as busy, and the client as connected.
pub(crate) async fn between(asked: Asked, server: OnUpgrade, lease: Lease) {
    if let (Ok(client), Ok(server)) = tokio::join!(asked.client, server) {
        // That either side breaks off is how tunnels end.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
    drop((asked.guest, lease));
}
