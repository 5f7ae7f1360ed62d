//! New connections to servers.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::server::{Server, Speaks};
use crate::joined::poll_write_joined;

/// Opens connections; one for all cores.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    pub(crate) timeout: Duration,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// TLS towards servers cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// rustls does not agree.
    #[error("cannot set up TLS")]
    Rustls(#[from] rustls::Error),
}

impl Connector {
    /// Trusts the certificates that the machine trusts, and `also`.
    pub(crate) fn new(timeout: Duration, also: &RootCertStore) -> Result<Self, TlsError> {
        let mut roots = also.clone();
        // A machine without certificates can still reach servers without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { tls: TlsConnector::from(Arc::new(config)), timeout })
    }

    /// A connection, and whether HTTP/2 is spoken over it.
    pub(crate) async fn connect(&self, server: &Server) -> io::Result<(Stream, bool)> {
        let connecting = async {
            let tcp = TcpStream::connect(&server.place).await?;
            tcp.set_nodelay(true)?;
            if server.speaks != Speaks::Tls {
                return Ok((Stream::Plain(tcp), server.speaks == Speaks::Http2));
            }
            let name = ServerName::try_from(server.host().to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let tls = self.tls.connect(name, tcp).await?;
            let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((Stream::Tls(Box::new(tls)), is_http2))
        };
        tokio::time::timeout(self.timeout, connecting).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not accept in time"))
        })
    }
}

/// A connection with or without TLS.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Handed(Box<Handed>),
}

/// A connection over which somebody has asked, and part of the answer has come already. Who gets it asks to nobody
/// first, and then reads that answer.
#[derive(Debug)]
pub(crate) struct Handed {
    stream: TcpStream,
    read: Bytes,
    has_asked: bool,
    /// Who reads before it has asked.
    early: Option<Waker>,
}

impl Handed {
    pub(super) fn new(stream: TcpStream, read: Bytes) -> Self {
        Self { stream, read, has_asked: false, early: None }
    }

    /// The first words, the whole of a request without a body, were said before.
    fn poll_write(&mut self, cx: &mut Context<'_>, words: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.has_asked {
            return poll_write_joined(Pin::new(&mut self.stream), cx, words);
        }
        self.has_asked = true;
        if let Some(early) = self.early.take() {
            early.wake();
        }
        Poll::Ready(Ok(words.iter().map(|word| word.len()).sum()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.has_asked {
            self.early = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let length = self.read.len().min(buf.remaining());
        buf.put_slice(&self.read.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Handed(handed) => handed.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Handed(handed) => handed.poll_write(cx, &[IoSlice::new(buf)]),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Handed(handed) => Pin::new(&mut handed.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Handed(handed) => Pin::new(&mut handed.stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => poll_write_joined(Pin::new(stream), cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Handed(handed) => handed.poll_write(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Handed(handed) => handed.stream.is_write_vectored(),
        }
    }
}
