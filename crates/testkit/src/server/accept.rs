//! A listener and a task or thread for each of its connections.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::port::ANY;
use crate::wait::soon;

/// Accepts connections and hands each to a task, until it is dropped. The tasks end with it.
#[derive(Debug)]
pub struct AcceptLoop {
    /// Where it listens.
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl AcceptLoop {
    /// Listens at a free port. `serve` is called with the number of each connection, from 0 on.
    pub async fn start<F, T>(serve: F) -> Self
    where
        F: FnMut(usize, TcpStream) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        Self::start_at(ANY, serve).await
    }

    /// The same at this address.
    pub async fn start_at<F, T>(address: SocketAddr, mut serve: F) -> Self
    where
        F: FnMut(usize, TcpStream) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                connections.spawn(serve(number, stream));
            }
        });
        Self { address, accepting }
    }

    /// The address as the URL of an HTTP/1.1 server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address as the URL of an HTTP/2 server without TLS.
    pub fn h2c(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// Closes the listener and every connection, and returns once that is done.
    pub async fn close(mut self) {
        self.accepting.abort();
        // It ends in no other way.
        let _ = soon(&mut self.accepting).await;
    }
}

impl Drop for AcceptLoop {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Listens at a free port with a thread for each connection, for as long as the process lives. A connection whose thread
/// fails is closed.
pub fn thread_per_connection<F>(serve: F) -> SocketAddr
where
    F: Fn(std::net::TcpStream) -> io::Result<()> + Clone + Send + 'static,
{
    let listener = std::net::TcpListener::bind(ANY).expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}
