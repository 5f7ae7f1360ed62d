//! Compiles the YAML tree into a plan, or reports all problems.
//!
//! Every function takes a node and returns a part of the plan. Problems go to the report and decoding continues, so
//! the operator sees all problems at once. A plan is returned only if there is no error.

mod actions;
mod addresses;
mod admin;
mod clients;
mod costs;
pub(crate) mod counters;
mod files;
mod http;
mod identities;
mod limits;
mod mode;
mod names;
pub(crate) mod network;
mod rejections;
mod reload;
mod resilience;
mod routing;
mod rules;
pub(crate) mod scalar;
mod service;
mod store;
mod store_url;
mod telemetry_config;

use std::sync::Arc;

use ipnet::IpNet;
use tidegate_headers::HeaderStyle;

use crate::directory::Directory;
use crate::expression::ExpressionBudget;
use crate::files::Files;
use crate::identity::ClientKind;
use crate::language::{ALLOW, BANS, CLIENTS, POLICY, RATE_LIMITS};
use crate::plan::{
    self, Clients, HttpOptions, LogPlan, PathCase, Plan, RateLimits, Route, StorePlan, StoreUrl,
};
use crate::problem::Problems;
use crate::raw::{self, Fields, Finding, NodeRef, ProblemReport, SourcePosition, YamlNode, YamlValue};
use crate::warnings;
use addresses::AllListeners;
pub use admin::{AdminLocation, locate_admin};
use names::RuleNames;
pub use service::ServiceAddresses;

/// The maximum size of a policy file in bytes. Ten thousand rules take about a fifteenth of it.
pub const MAX_FILE_SIZE: usize = 16 << 20;

/// A plan with its warnings.
#[derive(Clone, Debug)]
pub struct CompiledPolicy {
    /// The plan.
    pub plan: Plan,
    /// What is valid but probably mistaken; never an error.
    pub warnings: Problems,
}

/// Compiles the policy `bytes`. Problems name it `file`; `files` reads the files it refers to.
///
/// All problems are reported at once. Time and memory are bounded for any input.
///
/// ```
/// use tidegate_policy::{NoFiles, compile};
///
/// let policy = b"rate_limits:\n  default: { requests: 100, window: 60 }\n";
/// let compiled = compile("policy.yaml", policy, &NoFiles)?;
/// let limit = compiled.plan.rate_limits.default.expect("the policy has a default limit");
/// assert_eq!(limit.describe(), "100 per 1m, sliding_window_counter");
///
/// let problems = compile("policy.yaml", b"rate_limit: {}", &NoFiles).unwrap_err();
/// assert!(problems.to_string().contains("did you mean `rate_limits`?"));
/// # Ok::<(), tidegate_policy::Problems>(())
/// ```
pub fn compile(file: &str, bytes: &[u8], files: &dyn Files) -> Result<CompiledPolicy, Problems> {
    compile_with(file, bytes, files, CompileOptions::default())
}

/// What the caller sets instead of the policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileOptions<'o> {
    /// The URL of the shared store. It must be valid.
    pub store_url: Option<&'o str>,
    /// The addresses of the decision service.
    pub service: ServiceAddresses<'o>,
    /// Whether the gateway listens on other addresses than those of `listen`.
    pub has_listeners: bool,
    /// The plan whose upstreams and routes are used; the policy has none of its own.
    pub routing: Option<&'o Plan>,
}

/// Like [`compile()`], with settings that replace those of the policy.
pub fn compile_with(
    file: &str,
    bytes: &[u8],
    files: &dyn Files,
    options: CompileOptions<'_>,
) -> Result<CompiledPolicy, Problems> {
    let text = match text(file, bytes) {
        Ok(text) => text,
        Err(problems) => return Err(*problems),
    };
    let mut context = CompileContext {
        report: ProblemReport::new(file, text),
        files,
        names: RuleNames::default(),
        targets: WarningTargets::default(),
        expressions: ExpressionBudget::default(),
        upstreams: Vec::new(),
        configured: Vec::new(),
        has_routes: false,
        directory: None,
        file_bans: Vec::new(),
        path_case: PathCase::default(),
        store: None,
        store_url: options.store_url.map(StoreUrl::new),
    };
    let root = raw::parse(text, &mut context.report);
    if let Some(root) = &root {
        find_variables(root, &mut context.report);
    }
    let plan = match &root {
        Some(root) if root.is_null() => {
            context.report.push(empty(root.position));
            None
        }
        Some(root) => decode(root, options, &mut context),
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

/// Warns about values that look like variables of the environment, as other programs expand them.
fn find_variables(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) {
    match &node.value {
        YamlValue::Scalar { text, .. } => {
            let Some(name) = variable(text).filter(|_| !report.is_full()) else { return };
            let what = format!("`${{{name}}}` is not expanded: a policy has no variables");
            let hint = "write the value; what must stay secret belongs into a file that a key names, such as `password_file`";
            report.push(Finding::warning(NodeRef::from(node), what).hint(hint));
        }
        YamlValue::List(items) => items.iter().for_each(|item| find_variables(item, report)),
        YamlValue::Mapping(entries) => {
            for entry in entries {
                find_variables(&entry.value, report);
            }
        }
    }
}

/// The name of the first `${NAME}` in a text.
fn variable(text: &str) -> Option<&str> {
    text.split("${").skip(1).find_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then_some(name)
    })
}

/// Decodes the bytes as UTF-8; rejects files that are too large.
pub(crate) fn text<'s>(file: &str, bytes: &'s [u8]) -> Result<&'s str, Box<Problems>> {
    let reject = |finding: Finding| {
        let mut report = ProblemReport::new(file, "");
        report.push(finding);
        Box::new(report.finish(None))
    };
    if bytes.len() > MAX_FILE_SIZE {
        let finding = Finding::error_at(SourcePosition::default(), "the file is larger than 16 MiB");
        return Err(reject(
            finding.hint("check that this is the right file; a policy of 10,000 rules takes about 1 MiB"),
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
        // The invalid bytes cannot be shown; end the excerpt with the replacement character.
        let shown = format!("{good}\u{fffd}");
        let mut report = ProblemReport::new(file, &shown);
        let finding = Finding::error_at(place, "the file is not valid UTF-8 at this position");
        let hint = "pass a YAML file saved as UTF-8, not a compressed or binary file";
        report.push(finding.hint(hint));
        Box::new(report.finish(None))
    })
}

fn empty(position: SourcePosition) -> Finding {
    let finding = Finding::error_at(SourcePosition { length: 1, ..position }, "the policy is empty");
    finding.hint("start with `rate_limits: { default: { requests: 100, window: 60 } }`")
}

/// The shared state of one compilation.
struct CompileContext<'s, 'f> {
    report: ProblemReport<'s>,
    files: &'f dyn Files,
    names: RuleNames,
    targets: WarningTargets,
    expressions: ExpressionBudget,
    /// The names of the upstreams, in order.
    upstreams: Vec<String>,
    /// The identities that `clients` configures, validly or not.
    configured: Vec<ClientKind>,
    /// Whether requests are routed. Otherwise callers name the rules and the identities of their clients.
    has_routes: bool,
    /// The tier and tenant of each API key.
    directory: Option<Arc<Directory>>,
    /// How many networks the ban file lists.
    file_bans: Vec<IpNet>,
    /// The least strict `path_case` of all routes.
    path_case: PathCase,
    /// `store`; `None` if it is invalid.
    store: Option<Arc<StorePlan>>,
    /// Replaces `store.url`.
    store_url: Option<StoreUrl>,
}

/// The nodes that warnings point at.
#[derive(Debug, Default)]
pub(crate) struct WarningTargets {
    pub(crate) rules: std::collections::HashMap<tidegate_core::RuleId, NodeRef>,
    pub(crate) routes: Vec<NodeRef>,
    pub(crate) tiers: NodeRef,
    pub(crate) rate_limits: NodeRef,
    /// `None` if the policy uses the default.
    pub(crate) identify_by: Option<NodeRef>,
    pub(crate) verify: NodeRef,
    /// The headers of `clients.user`, `clients.tenant` and `clients.tiers`.
    pub(crate) proxied: Vec<NodeRef>,
    /// The first `jwt` of `clients.user` and `clients.tenant`.
    pub(crate) token: Option<NodeRef>,
    /// `claim` or `header` of `clients.tiers`.
    pub(crate) sent_tier: NodeRef,
    /// The policy sets `clients.on_invalid`.
    pub(crate) chooses_on_invalid: bool,
    pub(crate) trusted_proxies: Vec<NodeRef>,
    pub(crate) exempt_networks: Vec<NodeRef>,
    pub(crate) bans: NodeRef,
    pub(crate) allow: NodeRef,
    pub(crate) store: NodeRef,
    /// `cache.memory`, if the policy sets it.
    pub(crate) cache: Option<NodeRef>,
    /// Some keys of `store`, if the policy sets them.
    pub(crate) store_keys: std::collections::HashMap<&'static str, NodeRef>,
}

fn decode<'s>(
    root: &YamlNode<'s>,
    options: CompileOptions<'_>,
    context: &mut CompileContext<'s, '_>,
) -> Option<Plan> {
    let fields = Fields::open(root, &POLICY, &mut context.report)?;
    let service = service::service(root, fields.get("service"), options.service, context);
    let admin = admin::admin(fields.get("admin"), &mut context.report);
    let mut upstreams =
        fields.get("upstreams").map(|node| routing::upstreams(node, context)).unwrap_or_default();
    // Actions of limits name upstreams.
    context.upstreams = upstreams.iter().map(|upstream| upstream.name.clone()).collect();
    // Routes inherit these, so decode them first.
    let http = http::options(fields.get("http"), HttpOptions::default(), &mut context.report);
    let mut routes = routing::routes(fields.get("routes"), &upstreams, http, context);
    context.has_routes = options.routing.is_some() || fields.get("routes").is_some();
    if let Some(routing) = options.routing {
        report_other_routing(&fields, &mut context.report);
        upstreams.clone_from(&routing.upstreams);
        routes = routing.routes.iter().map(|route| Route { http, ..route.clone() }).collect();
        context.targets.routes = vec![NodeRef::from(root); routes.len()];
    }
    let listen = match fields.get("listen") {
        // The policy serves decisions only.
        None if routes.is_empty() && !service.is_empty() => Vec::new(),
        node => routing::listen(node, context),
    };
    let all = AllListeners { gateway: &listen, admin: admin.as_ref(), service: &service };
    addresses::check(root, &fields, all.without_gateway_if(options.has_listeners), &mut context.report);
    context.path_case = plan::loosest_path_case(http, &routes);
    // `clients` refers to tiers and rules refer to identities, so collect the tier names first.
    let tiers = limits::tier_names(fields.get("rate_limits"));
    let clients = clients(&fields, &tiers, context);
    // Rules inherit how nodes share limits.
    let store = store::store(fields.get("store"), context).map(Arc::new);
    context.store.clone_from(&store);
    let rate_limits = rate_limits((root, fields.get("rate_limits")), clients.as_ref(), context);
    let bans = bans(&fields, clients.as_ref(), context);
    let allow = fields.get("allow").map(|node| allow(node, context));
    let headers = headers(&fields, &mut context.report);
    let error_bodies = rejections::error_bodies(&fields, context);
    let cache_memory = actions::cache_memory(&fields, context);
    let log = log(&fields, &mut context.report);
    let reload = reload::reload(fields.get("reload"), &mut context.report);
    let traces = fields.get("traces").and_then(|node| telemetry_config::traces(node, &mut context.report));
    let (clients, error_bodies) = (clients?, error_bodies?);
    let identities = identities::identities(&clients, root, context);
    Some(Plan {
        listen,
        service,
        admin,
        upstreams,
        routes,
        http,
        clients,
        bans,
        file_bans: std::mem::take(&mut context.file_bans),
        allow,
        rate_limits: rate_limits?,
        headers,
        cache_memory: cache_memory?,
        rejection_body: error_bodies.rejections,
        error_body: error_bodies.others,
        store: StorePlan::clone(&*store?),
        log: log?,
        traces,
        identities: identities?,
        directory: context.directory.take(),
        reload: reload?,
    })
}

/// Reports upstreams and routes of a policy that the command line has already.
fn report_other_routing(fields: &Fields<'_, '_>, report: &mut ProblemReport<'_>) {
    for node in ["upstreams", "routes"].into_iter().filter_map(|key| fields.get(key)) {
        let finding = Finding::error(node, "the upstream is set on the command line already");
        report.push(finding.hint("remove `upstreams` and `routes`, or start without `--upstream`"));
    }
}

fn rate_limits<'s>(
    (root, node): (&YamlNode<'s>, Option<&YamlNode<'s>>),
    clients: Option<&Clients>,
    context: &mut CompileContext<'s, '_>,
) -> Option<RateLimits> {
    context.targets.rate_limits = NodeRef::from(node.unwrap_or(root));
    let Some(node) = node else { return Some(RateLimits::default()) };
    let fields = Fields::open(node, &RATE_LIMITS, &mut context.report)?;
    Some(limits::rate_limits(&fields, clients, context))
}

fn clients<'s>(
    fields: &Fields<'_, 's>,
    tiers: &[&str],
    context: &mut CompileContext<'s, '_>,
) -> Option<Clients> {
    let Some(node) = fields.get("clients") else { return Some(Clients::default()) };
    // If `clients` cannot be read, do not report identities in rules as not configured.
    context.configured = ClientKind::NAMED.to_vec();
    let fields = Fields::open(node, &CLIENTS, &mut context.report)?;
    Some(clients::clients(&fields, tiers, context))
}

fn bans<'s>(
    fields: &Fields<'_, 's>,
    clients: Option<&Clients>,
    context: &mut CompileContext<'s, '_>,
) -> Vec<IpNet> {
    let Some(node) = fields.get("bans") else { return Vec::new() };
    context.targets.bans = NodeRef::from(node);
    let fields = Fields::open(node, &BANS, &mut context.report);
    fields.map_or_else(Vec::new, |fields| network::bans(&fields, clients, context))
}

fn allow<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Vec<IpNet> {
    context.targets.allow = NodeRef::from(node);
    let fields = Fields::open(node, &ALLOW, &mut context.report);
    fields.map_or_else(Vec::new, |fields| network::allow(node, &fields, context))
}

fn log<'s>(fields: &Fields<'_, 's>, report: &mut ProblemReport<'s>) -> Option<LogPlan> {
    fields.get_or("log", LogPlan::default(), |node| telemetry_config::log(node, report))
}

fn headers(fields: &Fields<'_, '_>, report: &mut ProblemReport<'_>) -> Vec<HeaderStyle> {
    let Some(node) = fields.get("headers") else {
        return vec![HeaderStyle::XRateLimit, HeaderStyle::RateLimit];
    };
    let styles = scalar::choices(node, "header style", &HeaderStyle::NAMES, &HeaderStyle::ALL, report);
    for (one, other) in [
        (HeaderStyle::XRateLimit, HeaderStyle::XRateLimitMs),
        (HeaderStyle::RateLimitEpoch, HeaderStyle::RateLimitDelta),
    ] {
        if styles.contains(&one) && styles.contains(&other) {
            let what = format!("`{}` and `{}` use the same header names", one.name(), other.name());
            let finding = Finding::error(node, what).expected("at most one of the two");
            report.push(finding.hint("remove one of them; `ratelimit` has names of its own"));
        }
    }
    styles
}
