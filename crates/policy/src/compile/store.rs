//! Decodes `store`, and how nodes share the counters of a rule.

use std::num::NonZeroU32;

use tidegate_core::{Algorithm, Coordination, StoreFailureMode};

use crate::compile::store_url::store_url;
use crate::compile::{CompileContext, admin, files, routing, scalar};
use crate::language::{STORE, STORE_TLS};
use crate::plan::{RuleSharing, Secret, SecretFile, StorePlan, StoreTlsPlan, StoreUrl};
use crate::raw::{Fields, Finding, NodeRef, YamlNode};
use crate::render::quote;

/// The minimum of `store.max_memory`.
const MIN_MEMORY: u64 = 1 << 20;
/// The minimum length of the secret in bytes; shorter ones can be guessed.
const MIN_SECRET_LENGTH: usize = 16;
/// The keys that only a shared store uses.
const SHARED_KEYS: [&str; 8] = [
    "timeout",
    "sync_interval",
    "on_store_failure",
    "fallback_share",
    "secret_file",
    "password_file",
    "prefix",
    "tls",
];

/// Decodes `store`.
pub(super) fn store<'s>(
    node: Option<&YamlNode<'s>>,
    context: &mut CompileContext<'s, '_>,
) -> Option<StorePlan> {
    let replacement = context.store_url.clone();
    let Some(node) = node else {
        let url = replacement.filter(|url| !url.is_memory());
        return Some(StorePlan { url, ..StorePlan::default() });
    };
    context.targets.store = NodeRef::from(node);
    let fields = Fields::open(node, &STORE, &mut context.report)?;
    let is_shared = replacement.is_some() || fields.get("url").is_some_and(|node| !node.is_text("memory"));
    let url = fields.get("url").and_then(|node| store_url(node, &mut context.report));
    if let (Some(node), Some(url), true) = (fields.get("url"), &url, fields.is_misspelt())
        && url.expose().contains("-cluster://")
    {
        let finding =
            Finding::error(node, "the URL may end at a comma: inside braces a comma begins the next key");
        context.report.push(finding.hint("quote it, for example `url: 'redis-cluster://host1,host2'`"));
    }
    let mut plan = StorePlan { url: replacement.or(url), ..StorePlan::default() };
    local_settings(&fields, &mut plan, context);
    shared_settings(&fields, &mut plan, context);
    plan.secret = fields.get("secret_file").and_then(|node| secret(node, context));
    plan.password = fields.get("password_file").and_then(|node| password(node, &plan, context));
    if let Some(node) = fields.get("tls") {
        plan.tls = tls(node, &plan, context).unwrap_or_default();
    }
    if !is_shared {
        reject_unused(&fields, context);
    }
    if plan.coordination == Coordination::Static && fields.get("nodes").is_none() {
        let finding = Finding::error(node, "`coordination: static` needs the number of nodes");
        context.report.push(finding.hint("add `nodes`, for example `nodes: 3`"));
    }
    for key in ["coordination", "sync_interval", "fallback_share", "nodes"] {
        if let Some(node) = fields.get(key) {
            context.targets.store_keys.insert(key, NodeRef::from(node));
        }
    }
    // The rest of the section was checked with it.
    plan.url = plan.url.filter(|url| !url.is_memory());
    Some(plan)
}

/// Decodes the settings of this process.
fn local_settings<'s>(fields: &Fields<'_, 's>, plan: &mut StorePlan, context: &mut CompileContext<'s, '_>) {
    let report = &mut context.report;
    if let Some(node) = fields.get("max_memory")
        && let Some(bytes) = scalar::size(node, report)
    {
        if bytes < MIN_MEMORY {
            let finding = Finding::error(node, format!("`max_memory` is too small: {bytes} bytes"));
            report.push(finding.expected("at least 1MiB").hint("add the unit, for example `64MiB`"));
        }
        plan.max_memory = bytes;
    }
    plan.directory = admin::directory(fields, report);
}

/// Decodes the settings of a shared store, except for files. Invalid ones keep their defaults; they have been reported.
fn shared_settings<'s>(fields: &Fields<'_, 's>, plan: &mut StorePlan, context: &mut CompileContext<'s, '_>) {
    plan.coordination = coordination(fields, context).unwrap_or(plan.coordination);
    plan.on_store_failure = failure_mode(fields, context).unwrap_or(plan.on_store_failure);
    let report = &mut context.report;
    if let Some(timeout) = fields.get("timeout").and_then(|node| scalar::duration(node, report)) {
        plan.timeout = timeout;
    }
    if let Some(interval) = fields.get("sync_interval").and_then(|node| scalar::duration(node, report)) {
        plan.sync_interval = interval;
    }
    if let Some(node) = fields.get("fallback_share") {
        let zero = "write `on_store_failure: deny` to reject requests while Redis fails";
        plan.fallback_share = scalar::ratio(node, zero, report).unwrap_or(plan.fallback_share);
    }
    if let Some(node) = fields.get("nodes") {
        let nodes = scalar::positive_u32(node, "`nodes`", report).and_then(NonZeroU32::new);
        plan.nodes = nodes.unwrap_or(plan.nodes);
    }
    if let Some(node) = fields.get("prefix")
        && let Some(text) = scalar::text(node, "a text, for example `\"tg:\"`", report)
    {
        // A brace would change the hash slots of all keys.
        let is_valid =
            text.len() <= 64 && text.bytes().all(|b| b.is_ascii_graphic() && b != b'{' && b != b'}');
        if !is_valid {
            let finding = Finding::error(node, format!("invalid prefix {}", quote(text)));
            let finding = finding.expected("1 to 64 ASCII characters without spaces and braces");
            report.push(finding.hint("for example `\"tg:\"`"));
        }
        text.clone_into(&mut plan.prefix);
    }
}

fn coordination(fields: &Fields<'_, '_>, context: &mut CompileContext<'_, '_>) -> Option<Coordination> {
    let node = fields.get("coordination")?;
    scalar::choice(node, "coordination", &Coordination::NAMES, &Coordination::ALL, &mut context.report)
}

fn failure_mode(fields: &Fields<'_, '_>, context: &mut CompileContext<'_, '_>) -> Option<StoreFailureMode> {
    let node = fields.get("on_store_failure")?;
    scalar::choice(
        node,
        "failure mode",
        &StoreFailureMode::NAMES,
        &StoreFailureMode::ALL,
        &mut context.report,
    )
}

/// Reports keys that have no effect without a shared store.
fn reject_unused(fields: &Fields<'_, '_>, context: &mut CompileContext<'_, '_>) {
    let mut reject = |node: &YamlNode<'_>, what: String| {
        let finding = Finding::error(node, what);
        context
            .report
            .push(finding.hint("add `url`, for example `url: redis://127.0.0.1:6379`, or remove it"));
    };
    for key in SHARED_KEYS {
        if let Some(node) = fields.get(key) {
            reject(node, format!("`{key}` has no effect without `store.url`"));
        }
    }
    if let Some(node) = fields.get("coordination").filter(|node| !node.is_text("static")) {
        reject(node, "without `store.url` nodes share nothing; only `static` works".to_owned());
    }
}

fn secret(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<SecretFile> {
    let file = files::read_file(node, context)?;
    let secret = file.bytes.trim_ascii_end();
    if secret.len() < MIN_SECRET_LENGTH {
        let what = format!("the secret in {} is too short: {} bytes", quote(&file.shown), secret.len());
        let finding = Finding::error(node, what).expected(format!("at least {MIN_SECRET_LENGTH} bytes"));
        context
            .report
            .push(finding.hint("create one with `openssl rand -base64 32`, and copy it to every node"));
        return None;
    }
    Some(SecretFile { secret: Secret::new(secret), file: file.name })
}

fn password(
    node: &YamlNode<'_>,
    plan: &StorePlan,
    context: &mut CompileContext<'_, '_>,
) -> Option<SecretFile> {
    let file = files::read_file(node, context)?;
    let password = file.bytes.trim_ascii_end();
    let finding = if password.is_empty() {
        Finding::error(node, format!("{} is empty", quote(&file.shown)))
            .hint("write the password into the file")
    } else if std::str::from_utf8(password).is_err() {
        Finding::error(node, format!("{} is not text", quote(&file.shown))).hint("save the password as UTF-8")
    } else if plan.url.as_ref().is_some_and(StoreUrl::has_password) {
        Finding::error(node, "`store.url` contains a password too").hint("remove the password from the URL")
    } else {
        return Some(SecretFile { secret: Secret::new(password), file: file.name });
    };
    context.report.push(finding);
    None
}

fn tls<'s>(
    node: &YamlNode<'s>,
    plan: &StorePlan,
    context: &mut CompileContext<'s, '_>,
) -> Option<StoreTlsPlan> {
    let fields = Fields::open(node, &STORE_TLS, &mut context.report)?;
    if let Some(url) = plan.url.as_ref().filter(|url| !url.is_tls()) {
        let finding = Finding::error(node, format!("`tls` has no effect: {url} is not encrypted"));
        context.report.push(finding.hint("write `rediss` instead of `redis` in `url`, or remove `tls`"));
    }
    let mut pem = |key: &str| fields.get(key).map(|node| routing::pem_file(node, context));
    let (ca, cert, key) = (pem("ca"), pem("cert"), pem("key"));
    if cert.is_some() != key.is_some() {
        let (present, missing) = if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
        let at = fields.get(present).unwrap_or(node);
        let finding = Finding::error(at, format!("`{present}` needs `{missing}`"));
        context.report.push(finding.hint(format!("add `{missing}`, or remove `{present}`")));
    }
    let client = match (cert.flatten(), key.flatten()) {
        (Some(cert), Some(key)) => Some((cert.bytes, Secret::new(&key.bytes))),
        _ => None,
    };
    Some(StoreTlsPlan { ca: ca.flatten().map(|file| file.bytes), client })
}

/// Decodes how nodes share the counters of a rule with this algorithm; `None` if they do not. `store` is `None` if it is
/// invalid.
pub(super) fn sharing<'s>(
    node: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    algorithm: Option<Algorithm>,
    context: &mut CompileContext<'s, '_>,
) -> Option<RuleSharing> {
    let own = coordination(fields, context);
    let own_failure = failure_mode(fields, context);
    let store = context.store.clone()?;
    let coordination = own.unwrap_or(store.coordination);
    let on_store_failure = own_failure.unwrap_or(store.on_store_failure);
    check_requirements(fields, coordination, &store, context);
    let at = |key: &str| fields.get(key);
    if let (Coordination::Lease | Coordination::Sync, Some(algorithm)) = (coordination, algorithm)
        && matches!(algorithm, Algorithm::LeakyBucket | Algorithm::SlidingLog)
    {
        let what = format!("`{}` does not support `{algorithm}`", coordination.name());
        let finding = Finding::error(at("coordination").or(at("algorithm")).unwrap_or(node), what);
        let finding = finding.expected("token_bucket, fixed_window or sliding_window_counter");
        context
            .report
            .push(finding.hint("set `coordination: central` for this limit, or change its algorithm"));
    }
    let is_shared = store.url.is_some() || coordination == Coordination::Static;
    is_shared.then_some(RuleSharing { coordination, on_store_failure })
}

/// Decodes how nodes share the permits of a rule with `concurrent`; `None` if each node counts its own requests, which is the
/// default, whatever `store.coordination` is.
pub(super) fn permit_sharing<'s>(
    fields: &Fields<'_, 's>,
    context: &mut CompileContext<'s, '_>,
) -> Option<RuleSharing> {
    let own_failure = failure_mode(fields, context);
    let Some(node) = fields.get("coordination") else {
        if let Some(node) = fields.get("on_store_failure") {
            let what = "`on_store_failure` has no effect: each node counts its own concurrent requests";
            let hint = "add `coordination: central`, so that nodes share the limit, or remove it";
            context.report.push(Finding::error(node, what).hint(hint));
        }
        return None;
    };
    let coordination = coordination(fields, context)?;
    let store = context.store.clone()?;
    if matches!(coordination, Coordination::Lease | Coordination::Sync) {
        let what = format!("`{}` does not support `concurrent`", coordination.name());
        let finding = Finding::error(node, what).expected("central or static");
        let hint = "set `coordination: central`, or remove it, so that each node counts its own requests";
        context.report.push(finding.hint(hint));
        return None;
    }
    check_requirements(fields, coordination, &store, context);
    Some(RuleSharing { coordination, on_store_failure: own_failure.unwrap_or(store.on_store_failure) })
}

/// Reports what the keys of a rule with this coordination require of `store`.
fn check_requirements<'s>(
    fields: &Fields<'_, 's>,
    coordination: Coordination,
    store: &StorePlan,
    context: &mut CompileContext<'s, '_>,
) {
    let at = |key: &str| fields.get(key);
    if let (Some(node), true) = (at("on_store_failure"), coordination == Coordination::Static) {
        let finding = Finding::error(node, "`on_store_failure` has no effect with `coordination: static`");
        context.report.push(finding.hint("remove it; static limits do not use Redis"));
    }
    if let Some(node) = at("coordination") {
        if coordination == Coordination::Static && !context.targets.store_keys.contains_key("nodes") {
            let finding = Finding::error(node, "`coordination: static` needs the number of nodes");
            context.report.push(finding.hint("add `nodes` to `store`, for example `store: { nodes: 3 }`"));
        } else if coordination != Coordination::Static && store.url.is_none() {
            let finding =
                Finding::error(node, "without `store.url` nodes share nothing; only `static` works");
            context.report.push(finding.hint("add `store: { url: redis://127.0.0.1:6379 }`, or remove it"));
        }
    } else if let (Some(node), None) = (at("on_store_failure"), &store.url) {
        let finding = Finding::error(node, "`on_store_failure` has no effect without `store.url`");
        context.report.push(finding.hint("add `store: { url: redis://127.0.0.1:6379 }`, or remove it"));
    }
}
