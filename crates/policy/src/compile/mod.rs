//! What was written → what can be used, or everything that is in the way.
//!
//! Every function here takes a node and gives a part of the plan; whatever is wrong goes to the report and the
//! rest is decoded all the same, so that the operator sees every problem at once. A plan is made only if there was
//! no error.

mod admin;
mod clients;
mod costs;
mod files;
mod http;
mod identities;
mod limits;
mod mode;
mod names;
pub(crate) mod network;
mod routing;
mod rules;
mod scalar;
mod telemetry_config;

use std::sync::Arc;

use tidegate_headers::{BodyStyle, HeaderStyle};

use crate::directory::Directory;
use crate::files::Files;
use crate::identity::ClientKind;
use crate::language::{BANS, CLIENTS, ERROR_BODIES, HEADER_STYLES, POLICY, RATE_LIMITS, STORE};
use crate::plan::{self, Clients, HttpOptions, LogPlan, PathCase, Plan, RateLimits, StorePlan, StoreUrl};
use crate::problem::Problems;
use crate::raw::{self, Fields, Finding, NodeRef, ProblemReport, SourcePosition, YamlNode};
use crate::warnings;
use names::RuleNames;

/// The largest file that is read; ten thousand rules take about a fifteenth of it.
pub const MAX_FILE_SIZE: usize = 16 << 20;

/// What counters of one process may take where the policy does not say.
const DEFAULT_MEMORY: u64 = 64 << 20;
/// Less than this holds no table worth having.
const MIN_MEMORY: u64 = 1 << 20;

/// A plan, and what is doubtful about it.
#[derive(Clone, Debug)]
pub struct CompiledPolicy {
    /// The plan.
    pub plan: Plan,
    /// What is hardly meant; never an error.
    pub warnings: Problems,
}

/// Compiles the policy `bytes`, which problems call `file`; `files` gives what it refers to.
///
/// Every problem is reported at once. Whatever the bytes are, this takes bounded time and memory.
///
/// ```
/// use tidegate_policy::{NoFiles, compile};
///
/// let policy = b"rate_limits:\n  default: { requests: 100, window: 60 }\n";
/// let compiled = compile("policy.yaml", policy, &NoFiles)?;
/// let limit = compiled.plan.rate_limits.default.expect("it was written");
/// assert_eq!(limit.words(), "100 per 1m, sliding_window_counter");
///
/// let problems = compile("policy.yaml", b"rate_limit: {}", &NoFiles).unwrap_err();
/// assert!(problems.to_string().contains("did you mean `rate_limits`?"));
/// # Ok::<(), tidegate_policy::Problems>(())
/// ```
pub fn compile(file: &str, bytes: &[u8], files: &dyn Files) -> Result<CompiledPolicy, Problems> {
    let text = match text(file, bytes) {
        Ok(text) => text,
        Err(problems) => return Err(*problems),
    };
    let mut context = CompileContext {
        report: ProblemReport::new(file, text),
        files,
        names: RuleNames::default(),
        targets: WarningTargets::default(),
        written: Vec::new(),
        directory: None,
        path_case: PathCase::default(),
    };
    let root = raw::parse(text, &mut context.report);
    let plan = match &root {
        Some(root) if root.is_null() => {
            context.report.push(empty(root.position));
            None
        }
        Some(root) => decode(root, &mut context),
        None => {
            if !context.report.failed() {
                context.report.push(empty(SourcePosition { line: 1, column: 1, length: 1, offset: 0 }));
            }
            None
        }
    };
    let CompileContext { mut report, targets, .. } = context;
    match plan.filter(|_| !report.failed()) {
        Some(plan) => {
            warnings::find(&plan, &targets, &mut report);
            Ok(CompiledPolicy { plan, warnings: report.finish(root.as_ref()) })
        }
        None => Err(report.finish(root.as_ref())),
    }
}

/// The bytes as text, unless there is no point in looking at it.
fn text<'s>(file: &str, bytes: &'s [u8]) -> Result<&'s str, Box<Problems>> {
    let refuse = |finding: Finding| {
        let mut report = ProblemReport::new(file, "");
        report.push(finding);
        Box::new(report.finish(None))
    };
    if bytes.len() > MAX_FILE_SIZE {
        let finding = Finding::error_at(SourcePosition::default(), "the file is larger than 16 MiB");
        return Err(refuse(
            finding.hint("a policy of 10,000 rules takes about 1 MiB; is this the right file?"),
        ));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let last = good.rsplit('\n').next().unwrap_or_default();
        let place = SourcePosition {
            offset: good.len(),
            line: number(good.matches('\n').count() + 1),
            column: number(last.chars().count() + 1),
            length: 1,
        };
        // What follows cannot be shown as text; the replacement character stands for it.
        let shown = format!("{good}\u{fffd}");
        let mut report = ProblemReport::new(file, &shown);
        let finding = Finding::error_at(place, "the file is not UTF-8 text from here on");
        let hint = "give the policy's YAML file, saved as UTF-8; a compressed or binary file is none";
        report.push(finding.hint(hint));
        Box::new(report.finish(None))
    })
}

fn empty(position: SourcePosition) -> Finding {
    let finding = Finding::error_at(SourcePosition { length: 1, ..position }, "the policy is empty");
    finding.hint("the smallest is `rate_limits: { default: { requests: 100, window: 60 } }`")
}

/// What decoding needs and leaves behind.
struct CompileContext<'s, 'f> {
    report: ProblemReport<'s>,
    files: &'f dyn Files,
    names: RuleNames,
    targets: WarningTargets,
    /// Which identities `clients` speaks of, rightly or wrongly.
    written: Vec<ClientKind>,
    /// Whose API key is whose.
    directory: Option<Arc<Directory>>,
    /// Whether any request is matched without regard to case.
    path_case: PathCase,
}

/// Where things stand that a warning may be about.
#[derive(Debug, Default)]
pub(crate) struct WarningTargets {
    pub(crate) rules: std::collections::HashMap<tidegate_core::RuleId, NodeRef>,
    pub(crate) routes: Vec<NodeRef>,
    pub(crate) tiers: NodeRef,
    pub(crate) rate_limits: NodeRef,
    /// Only if the operator wrote it.
    pub(crate) identify_by: Option<NodeRef>,
    pub(crate) verify: NodeRef,
    /// User and tenant, where a header names them.
    pub(crate) proxied: Vec<NodeRef>,
    pub(crate) trusted_proxies: Vec<NodeRef>,
    pub(crate) exempt_networks: Vec<NodeRef>,
    pub(crate) bans: NodeRef,
}

fn decode<'s>(root: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<Plan> {
    let fields = Fields::open(root, &POLICY, &mut context.report)?;
    let listen = routing::listen(fields.get("listen"), context);
    let admin = admin::admin(fields.get("admin"), &mut context.report);
    let upstreams =
        fields.get("upstreams").map(|node| routing::upstreams(node, &mut context.report)).unwrap_or_default();
    // Before the routes, which inherit from it.
    let http = http::options(fields.get("http"), HttpOptions::default(), &mut context.report);
    let routes = routing::routes(fields.get("routes"), (&upstreams, http), context);
    context.path_case = plan::loosest_path_case(http, &routes);
    // Clients name tiers and rules name identities, so both sides are opened before either is decoded.
    let tiers = limits::tier_names(fields.get("rate_limits"));
    let clients = match fields.get("clients") {
        Some(node) => {
            // If they cannot be read, nothing that rules say of them is held against it.
            context.written = ClientKind::NAMED.to_vec();
            Fields::open(node, &CLIENTS, &mut context.report)
                .map(|fields| clients::clients(&fields, &tiers, context))
        }
        None => Some(Clients::default()),
    };
    let limits_at = fields.get("rate_limits");
    context.targets.rate_limits = NodeRef::from(limits_at.unwrap_or(root));
    let rate_limits = match limits_at.map(|node| Fields::open(node, &RATE_LIMITS, &mut context.report)) {
        Some(fields) => fields.map(|fields| limits::rate_limits(&fields, clients.as_ref(), context)),
        None => Some(RateLimits::default()),
    };
    let bans = fields.get("bans").and_then(|node| {
        context.targets.bans = NodeRef::from(node);
        let fields = Fields::open(node, &BANS, &mut context.report)?;
        Some(network::bans(&fields, context))
    });
    let headers = headers(&fields, &mut context.report);
    let error_body = match fields.get("error_body") {
        Some(node) => {
            scalar::choice(node, "form of body", ERROR_BODIES, &BodyStyle::ALL, &mut context.report)
        }
        None => Some(BodyStyle::default()),
    };
    let store = store(fields.get("store"), &mut context.report);
    let log = fields
        .get("log")
        .map_or(Some(LogPlan::default()), |node| telemetry_config::log(node, &mut context.report));
    let traces = fields.get("traces").and_then(|node| telemetry_config::traces(node, &mut context.report));
    let clients = clients?;
    let identities = identities::identities(&clients, root, context);
    Some(Plan {
        listen,
        admin,
        upstreams,
        routes,
        http,
        clients,
        bans: bans.unwrap_or_default(),
        rate_limits: rate_limits?,
        headers,
        error_body: error_body?,
        store: store?,
        log: log?,
        traces,
        identities: identities?,
        directory: context.directory.take(),
    })
}

fn headers(fields: &Fields<'_, '_>, report: &mut ProblemReport<'_>) -> Vec<HeaderStyle> {
    match fields.get("headers") {
        Some(node) => scalar::choices(node, "style of headers", HEADER_STYLES, &HeaderStyle::ALL, report),
        None => vec![HeaderStyle::XRateLimit, HeaderStyle::RateLimit],
    }
}

fn store<'s>(node: Option<&YamlNode<'s>>, report: &mut ProblemReport<'s>) -> Option<StorePlan> {
    let Some(node) = node else {
        return Some(StorePlan { url: None, max_memory: DEFAULT_MEMORY, directory: None });
    };
    let fields = Fields::open(node, &STORE, report)?;
    let url = fields.get("url").and_then(|node| store_url(node, report));
    let max_memory = match fields.get("max_memory") {
        Some(node) => {
            let bytes = scalar::size(node, report)?;
            if bytes < MIN_MEMORY {
                let finding = Finding::error(node, format!("{bytes} bytes hold hardly a counter"));
                report.push(finding.expected("at least 1MiB").hint("say the unit, such as `64MiB`"));
            }
            bytes
        }
        None => DEFAULT_MEMORY,
    };
    let directory = fields.get("directory").and_then(|node| {
        let text = scalar::text(node, "a folder, such as `/var/lib/tidegate`", report)?;
        Some(text.to_owned())
    });
    Some(StorePlan { url, max_memory, directory })
}

fn store_url<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> Option<StoreUrl> {
    const SCHEMES: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
    let text = scalar::text(node, "`memory`, or a URL such as `redis://127.0.0.1:6379`", report)?;
    if text == "memory" {
        return None;
    }
    let parts = text.split_once("://").filter(|(scheme, rest)| SCHEMES.contains(scheme) && !rest.is_empty());
    let host = parts.map(|(_, rest)| rest.rsplit_once('@').map_or(rest, |(_, place)| place));
    if host.is_none_or(|host| host.starts_with(['/', ':']) || host.contains(char::is_whitespace)) {
        let finding = Finding::error(node, "this is no URL of a store");
        let finding = finding.expected("`memory`, or a URL with redis://, rediss:// or valkey://");
        report.push(finding.hint("write it like `redis://127.0.0.1:6379`"));
        return None;
    }
    Some(StoreUrl::new(text))
}
