//! Where the policy comes from: a file, the command line, or the demo.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use tidegate_policy::{
    ActivePolicy, CompileOptions, CompiledPolicy, FileError, Files, Plan, Problems, ServiceAddresses,
    compile, compile_with, split_rate,
};
use tidegate_redis::Endpoint;

use super::demo;
use super::file_watcher::FileStamp;
use crate::args::ServeArgs;
use crate::file::{self, PolicyFolder};

/// The value of `--store` for counters in this process.
const MEMORY: &str = "memory";

/// Where an Envoy configuration without a policy is served: at the ports of the reference server's gRPC listener, and the next.
const ENVOY_GRPC: &str = "127.0.0.1:8081";
const ENVOY_HTTP: &str = "127.0.0.1:8082";

/// The source of the policy. It can be loaded again.
#[derive(Debug)]
pub(crate) struct PolicySource {
    pub(crate) origin: PolicyOrigin,
    /// Replaces `store.url`.
    store_url: Option<String>,
    /// Replace the addresses of `service`.
    service: ServiceOptions,
    /// Whether `--listen` replaces the addresses of `listen`.
    has_listeners: bool,
    /// The plan that forwards to the service of `--upstream`, for a policy file without routes.
    routing: Option<Box<Plan>>,
}

/// The addresses of `--grpc`, `--http` and `--resp`.
#[derive(Clone, Debug, Default)]
struct ServiceOptions {
    grpc: Option<String>,
    http: Option<String>,
    resp: Option<String>,
}

impl ServiceOptions {
    fn new(args: &ServeArgs) -> Self {
        Self { grpc: args.grpc.clone(), http: args.http.clone(), resp: args.resp.clone() }
    }

    fn addresses(&self) -> ServiceAddresses<'_> {
        let Self { grpc, http, resp } = self;
        ServiceAddresses { grpc: grpc.as_deref(), http: http.as_deref(), resp: resp.as_deref() }
    }

    /// The lines of a policy file; empty if there are no addresses.
    fn to_yaml(&self) -> String {
        let all = [("grpc", &self.grpc), ("http", &self.http), ("resp", &self.resp)];
        let lines =
            all.into_iter().filter_map(|(key, address)| Some(format!("  {key}: '{}'\n", address.as_ref()?)));
        let lines: String = lines.collect();
        if lines.is_empty() { lines } else { format!("service:\n{lines}") }
    }
}

/// Where the text of the policy comes from.
#[derive(Debug)]
pub(crate) enum PolicyOrigin {
    File(PathBuf),
    /// Made from the command line; contains the equivalent YAML.
    CommandLine(String),
    /// The built-in demo; contains its YAML.
    Demo(String),
}

/// A valid policy and its warnings.
pub(crate) struct LoadedPolicy {
    pub(crate) active: ActivePolicy,
    pub(crate) warnings: Problems,
}

/// Why a policy could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
    #[error("{0}")]
    Problems(Problems),
    #[error(transparent)]
    Unservable(#[from] UnservableError),
}

/// Why a valid policy cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnservableError {
    #[error(
        "the policy has no `routes`, so it forwards nothing; add `upstreams` and `routes`, start with `--upstream URL`, or \
         add `service` to serve decisions only"
    )]
    NoRoutes,
}

impl PolicySource {
    pub(crate) fn from_args(args: &ServeArgs) -> anyhow::Result<Self> {
        if let Some(url) = args.store.as_deref().filter(|url| *url != MEMORY) {
            Endpoint::parse(url).map_err(|error| anyhow!("--store: {error}"))?;
        }
        let (origin, service) = (PolicyOrigin::from_args(args)?, ServiceOptions::new(args));
        let routing = match (&origin, &args.upstream) {
            (PolicyOrigin::File(_), Some(upstream)) => Some(Box::new(routing_plan(upstream)?)),
            _ => None,
        };
        let has_listeners = args.listen.is_some();
        Ok(Self { origin, store_url: args.store.clone(), service, has_listeners, routing })
    }

    /// The policy file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.origin {
            PolicyOrigin::File(path) => Some(path),
            PolicyOrigin::CommandLine(_) | PolicyOrigin::Demo(_) => None,
        }
    }

    /// Loads the policy. Returns also the files that were read, even if the policy is invalid.
    pub(crate) fn load(&self) -> (Result<LoadedPolicy, LoadError>, Vec<FileStamp>) {
        let options = CompileOptions {
            store_url: self.store_url.as_deref(),
            service: self.service.addresses(),
            has_listeners: self.has_listeners,
            routing: self.routing.as_deref(),
        };
        match &self.origin {
            PolicyOrigin::File(path) => {
                let name = path.display().to_string();
                let files = RecordingFiles {
                    folder: PolicyFolder::of(path),
                    read: RefCell::new(vec![FileStamp::now(path)]),
                    path,
                };
                let outcome = file::read_policy(path)
                    .map_err(|error| LoadError::Unreadable {
                        file: name.clone(),
                        reason: file::describe_io_error(&error),
                    })
                    .and_then(|bytes| {
                        compile_with(&name, &bytes, &files, options).map_err(LoadError::Problems)
                    })
                    .and_then(require_servable);
                (outcome, files.read.into_inner())
            }
            PolicyOrigin::CommandLine(yaml) | PolicyOrigin::Demo(yaml) => {
                let files = tidegate_policy::NoFiles;
                let compiled = compile_with("command line", yaml.as_bytes(), &files, options);
                (compiled.map_err(LoadError::Problems).and_then(require_servable), Vec::new())
            }
        }
    }
}

impl PolicyOrigin {
    fn from_args(args: &ServeArgs) -> anyhow::Result<Self> {
        if let Some(path) = &args.config {
            return Ok(Self::File(path.clone()));
        }
        let (limit, store) = (args.limit.as_deref(), args.store.as_deref());
        if let Some(upstream) = &args.upstream {
            let listen = args.listen.as_ref().map(|address| format!("listen: ['{address}']\n"));
            let yaml = policy_yaml(upstream, limit.unwrap_or("100/m"), store)?;
            let yaml = listen.unwrap_or_default() + &yaml + &ServiceOptions::new(args).to_yaml();
            return Ok(Self::CommandLine(start_comment(args) + &yaml));
        }
        let mut service = ServiceOptions::new(args);
        if args.envoy_config.is_some() {
            service.grpc.get_or_insert_with(|| ENVOY_GRPC.to_owned());
            service.http.get_or_insert_with(|| ENVOY_HTTP.to_owned());
            return Ok(Self::CommandLine(
                start_comment(args) + &envoy_yaml(&service.to_yaml(), limit, store)?,
            ));
        }
        let service = service.to_yaml();
        if !service.is_empty() {
            return Ok(Self::CommandLine(service_yaml(&service, limit.unwrap_or("100/m"), store)?));
        }
        let upstream = format!("http://{}", demo::start()?);
        Ok(Self::Demo(policy_yaml(&upstream, limit.unwrap_or("10/m"), store)?))
    }
}

/// The comment that says how to start with this file, if that needs more than the file.
fn start_comment(args: &ServeArgs) -> String {
    let folder = args.envoy_config.as_ref().map(|folder| folder.display().to_string());
    let comment = |folder| format!("# tidegate serve --config policy.yaml --envoy-config '{folder}'\n");
    folder.map(comment).unwrap_or_default()
}

/// The plan that forwards all requests to this service.
fn routing_plan(upstream: &str) -> anyhow::Result<Plan> {
    let yaml = policy_yaml(upstream, "1/s", None)?;
    match compile("command line", yaml.as_bytes(), &tidegate_policy::NoFiles) {
        Ok(compiled) => Ok(compiled.plan),
        Err(problems) => Err(anyhow!("--upstream {upstream}\n{problems}")),
    }
}

fn require_servable(
    CompiledPolicy { plan, warnings, .. }: CompiledPolicy,
) -> Result<LoadedPolicy, LoadError> {
    if plan.routes.is_empty() && plan.service.is_empty() {
        return Err(UnservableError::NoRoutes.into());
    }
    Ok(LoadedPolicy { active: ActivePolicy::new(plan), warnings })
}

/// The files of a folder. Records which files were read.
struct RecordingFiles<'a> {
    folder: PolicyFolder,
    path: &'a Path,
    read: RefCell<Vec<FileStamp>>,
}

impl Files for RecordingFiles<'_> {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        self.read.borrow_mut().push(FileStamp::now(&folder.join(name)));
        self.folder.read(name)
    }
}

/// Parses a limit such as `100/m` into requests and window.
pub(crate) fn parse_limit(limit: &str) -> anyhow::Result<(u64, String)> {
    let (requests, window) = split_rate(limit).with_context(|| {
        format!("invalid limit `{limit}`: expected REQUESTS/WINDOW, such as 100/m, 10/s or 1000/15m")
    })?;
    let Ok(requests) = requests.parse::<u64>() else {
        bail!(
            "invalid limit `{limit}`: `{requests}` is not a number of requests; expected 100/m, 10/s or 1000/15m"
        );
    };
    Ok((requests, window))
}

/// Returns the policy file for one upstream with one limit per client address. It does not contain the password of the store.
fn policy_yaml(upstream: &str, limit: &str, store: Option<&str>) -> anyhow::Result<String> {
    let (requests, window) = parse_limit(limit)?;
    let store = store_yaml(store);
    Ok(format!(
        "\
upstreams:
  api: {{ servers: [{upstream}] }}
routes:
  - {{ path: /**, upstream: api }}
clients:
  identify_by: [ip]
rate_limits:
  default: {{ requests: {requests}, window: {window}, algorithm: token_bucket }}
{store}"
    ))
}

/// Returns the policy file of a decision service with one limit per client.
fn service_yaml(service: &str, limit: &str, store: Option<&str>) -> anyhow::Result<String> {
    let (requests, window) = parse_limit(limit)?;
    let store = store_yaml(store);
    Ok(format!(
        "\
{service}rate_limits:
  default: {{ requests: {requests}, window: {window}, algorithm: token_bucket }}
{store}"
    ))
}

/// Returns the policy file of a decision service whose limits are in an Envoy configuration.
fn envoy_yaml(service: &str, limit: Option<&str>, store: Option<&str>) -> anyhow::Result<String> {
    match limit {
        Some(limit) => service_yaml(service, limit, store),
        None => Ok(format!("{service}{}", store_yaml(store))),
    }
}

fn store_yaml(store: Option<&str>) -> String {
    store.map(|url| format!("store:\n  url: '{}'\n", without_password(url))).unwrap_or_default()
}

/// A store URL that can be shown and is still valid.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let Some((login, servers)) = rest.rsplit_once('@') else { return url.to_owned() };
    match login.split(':').next().unwrap_or_default() {
        "" => format!("{scheme}://{servers}"),
        user => format!("{scheme}://{user}@{servers}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_limit_becomes_a_valid_policy() {
        for limit in ["100/m", "10/s", "1000/15m", "5 / 1d"] {
            let yaml = policy_yaml("http://localhost:3000", limit, None).unwrap();
            let compiled = compile("command line", yaml.as_bytes(), &tidegate_policy::NoFiles);
            assert!(compiled.is_ok_and(|compiled| compiled.warnings.is_empty()), "{yaml}");
        }
        for bad in ["100", "many/m", "-1/m"] {
            let error = policy_yaml("http://localhost:3000", bad, None).unwrap_err().to_string();
            assert!(error.contains("100/m"), "{error}");
        }
    }

    #[test]
    fn command_line_store_is_in_the_policy_without_its_password() {
        let url_in = |store| policy_yaml("http://localhost:3000", "10/s", Some(store)).unwrap();
        assert!(
            url_in("redis://gate:pw@cache:6379/1").ends_with("store:\n  url: 'redis://gate@cache:6379/1'\n")
        );
        assert!(url_in("redis-cluster://:pw@a,b").ends_with("  url: 'redis-cluster://a,b'\n"));
        for store in ["redis://cache", "redis-cluster://:pw@a,b", "memory"] {
            let compiled = compile("command line", url_in(store).as_bytes(), &tidegate_policy::NoFiles);
            assert!(compiled.is_ok(), "{store}");
        }
    }
}
