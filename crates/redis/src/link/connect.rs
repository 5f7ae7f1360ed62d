//! Connections to servers: TCP, TLS, login and a first script.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, Script, Value};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::error::{ConnectError, ErrorReply};
use crate::config::{RedisConfig, TlsMaterial};
use crate::endpoint::ServerAddress;

/// The limit of a connection attempt. Short, because the next attempt may find a server that has come back.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// Writes nothing, but may: servers that cannot write now refuse it.
const PROBE: &str = "#!lua\nreturn 1";

/// Makes connections.
#[derive(Clone)]
pub(crate) struct RedisConnector {
    login: RedisConnectionInfo,
    tls: Option<TlsConnector>,
    /// How long the first script may take.
    timeout: Duration,
}

/// A connection. It closes when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct ServerConnection {
    commands: MultiplexedConnection,
    driver: Arc<Driver>,
}

/// The task that reads and writes.
#[derive(Debug)]
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

trait ServerStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ServerStream for T {}

impl RedisConnector {
    /// A connector for the servers of `config`.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, ConnectError> {
        let endpoint = &config.endpoint;
        let mut login = RedisConnectionInfo::default().set_db(endpoint.database).set_skip_set_lib_name();
        if let Some(user) = &endpoint.user {
            login = login.set_username(user);
        }
        if let Some(password) = endpoint.password.as_ref().or(config.password.as_ref()) {
            login = login.set_password(password);
        }
        let tls = if endpoint.tls { Some(tls_connector(&config.tls)?) } else { None };
        Ok(Self { login, tls, timeout: config.timeout })
    }

    /// The same without a login and a database, for Sentinels.
    pub(crate) fn anonymous(&self) -> Self {
        Self { login: RedisConnectionInfo::default().set_skip_set_lib_name(), ..self.clone() }
    }

    /// The same with database 0, for Sentinels that require a login.
    pub(crate) fn without_database(&self) -> Self {
        Self { login: self.login.clone().set_db(0), ..self.clone() }
    }

    /// Connects. `closed` is called when the connection has ended.
    pub(crate) async fn connect(
        &self,
        address: &ServerAddress,
        closed: impl FnOnce() + Send + 'static,
    ) -> Result<ServerConnection, ConnectError> {
        let opening = async {
            let stream = self.open(address).await?;
            // Timeouts are those of the callers.
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let (commands, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config)
                .await
                .map_err(|error| ConnectError::from_redis(address, error))?;
            let task = tokio::spawn(async move {
                driver.await;
                closed();
            });
            Ok(ServerConnection { commands, driver: Arc::new(Driver(task.abort_handle())) })
        };
        within(CONNECT_TIMEOUT, address, opening).await
    }

    /// Connects, and runs a script that could write to `key`, within the timeout of a call.
    pub(super) async fn connect_and_probe(
        &self,
        address: &ServerAddress,
        key: &[u8],
        closed: impl FnOnce() + Send + 'static,
    ) -> Result<ServerConnection, ConnectError> {
        let mut connection = self.connect(address, closed).await?;
        let script = Script::new(PROBE);
        let mut probe = Pipeline::with_capacity(2);
        probe.cmd("SCRIPT").arg("LOAD").arg(PROBE);
        probe.cmd("EVALSHA").arg(script.get_hash()).arg(1).arg(key);
        let replies = async {
            let sent = connection.send(&probe).await;
            sent.map_err(|error| ConnectError::from_redis(address, error))
        };
        let replies = within(self.timeout, address, replies).await?;
        // Without the permission to load a script, the error of the second command is another one.
        for reply in &replies {
            if let Value::ServerError(error) = reply
                && matches!(error.code(), "NOAUTH" | "NOPERM")
            {
                return Err(ConnectError::from_redis(address, error.clone().into()));
            }
        }
        match replies.last() {
            Some(Value::ServerError(error)) => match ErrorReply::parse(error, address) {
                // The server works; the slot is somewhere else.
                ErrorReply::Moved { .. } | ErrorReply::Ask { .. } | ErrorReply::TryAgain => Ok(connection),
                _ => {
                    let reason = format!("{} {}", error.code(), error.details().unwrap_or_default());
                    Err(ConnectError::Probe { address: address.clone(), reason })
                }
            },
            _ => Ok(connection),
        }
    }

    /// A connection that can only subscribe.
    pub(super) async fn connect_subscriber(&self, address: &ServerAddress) -> Result<PubSub, ConnectError> {
        let opening = async {
            let stream = self.open(address).await?;
            PubSub::new(&self.login, stream).await.map_err(|error| ConnectError::from_redis(address, error))
        };
        within(CONNECT_TIMEOUT, address, opening).await
    }

    async fn open(&self, address: &ServerAddress) -> Result<Box<dyn ServerStream>, ConnectError> {
        let failed = |source| ConnectError::Network { address: address.clone(), source };
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let failed = |source| ConnectError::Tls { address: address.clone(), source };
        let name = ServerName::try_from(address.host.clone())
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        Ok(Box::new(tls.connect(name, stream).await.map_err(failed)?))
    }
}

impl ServerConnection {
    /// Sends a pipeline once. Error replies are values; an error means that the connection has failed.
    pub(crate) async fn send(&mut self, pipeline: &Pipeline) -> redis::RedisResult<Vec<Value>> {
        self.commands.send_packed_commands(pipeline, 0, pipeline.len()).await
    }

    /// The connection for single commands.
    pub(crate) fn commands(&mut self) -> &mut impl ConnectionLike {
        &mut self.commands
    }

    /// Closes the connection, whatever waits for a reply.
    pub(super) fn abort(&self) {
        self.driver.0.abort();
    }
}

impl std::fmt::Debug for RedisConnector {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisConnector").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

async fn within<T>(
    limit: Duration,
    address: &ServerAddress,
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let late = |_| Err(ConnectError::Timeout { address: address.clone() });
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

fn tls_connector(material: &TlsMaterial) -> Result<TlsConnector, ConnectError> {
    let invalid = |reason: String| ConnectError::Certificates { reason };
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &material.ca {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| invalid(format!("the CA file: {error}")))?;
            roots.add(certificate).map_err(|error| invalid(format!("the CA file: {error}")))?;
        }
        if roots.is_empty() {
            return Err(invalid("the CA file has no certificate".to_owned()));
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?
        .with_root_certificates(roots);
    let config = match &material.client {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| invalid(format!("the client certificate: {error}")))?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| invalid(format!("the client's private key: {error}")))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| invalid(format!("the client certificate: {error}")))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
