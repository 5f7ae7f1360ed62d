//! Decodes `clients`: how clients are identified.

use std::sync::Arc;

use crate::compile::{CompileContext, files, network, scalar};
use crate::directory::form::KeyForm;
use crate::directory::{self, LineError};
use crate::identity::{ClientKind, KeysError, Verifier};
use crate::language::{
    API_KEY, COOKIE, EXEMPT, FINGERPRINT, IDENTITIES, IP, JWT, KEY_VERIFICATIONS, Mapping, TENANT, TIERS,
    USER,
};
use crate::plan::{
    ClaimName, Clients, ExemptClients, NameSource, OnInvalid, Secret, SentTier, TierSource, TokenKey,
    TokenPlan,
};
use crate::raw::{Fields, Finding, NodeRef, YamlNode, nearest};
use crate::render::quote;

/// The minimum length of an HS256 secret in bytes; shorter ones can be guessed.
const MIN_SECRET_LENGTH: usize = 16;

impl Default for Clients {
    fn default() -> Self {
        Self {
            identify_by: vec![ClientKind::ApiKey, ClientKind::Ip],
            api_key_header: "x-api-key".to_owned(),
            accepts_unverified_keys: false,
            user: None,
            tenant: None,
            trusted_proxies: Vec::new(),
            ipv6_prefix: 64,
            fingerprint_headers: ["user-agent", "accept-language", "accept-encoding"]
                .map(str::to_owned)
                .to_vec(),
            cookie: None,
            on_invalid: OnInvalid::default(),
            tiers: TierSource::default(),
            exempt: ExemptClients::default(),
        }
    }
}

impl Clients {
    /// Whether requests can have this identity.
    fn can_identify(&self, identity: ClientKind) -> bool {
        match identity {
            ClientKind::User => self.user.is_some(),
            ClientKind::Tenant => self.tenant.is_some() || self.tiers.file.is_some(),
            ClientKind::Cookie => self.cookie.is_some(),
            ClientKind::ApiKey => self.counts_keys(),
            ClientKind::Ip | ClientKind::Fingerprint => true,
            ClientKind::Anonymous => false,
        }
    }

    /// Whether API keys count: a keys file verifies them, or verification is off.
    pub(crate) fn counts_keys(&self) -> bool {
        self.tiers.file.is_some() || self.accepts_unverified_keys
    }
}

pub(super) fn clients<'s>(
    fields: &Fields<'_, 's>,
    tiers: &[&str],
    context: &mut CompileContext<'s, '_>,
) -> Clients {
    let mut clients = Clients::default();
    context.configured =
        ClientKind::NAMED.into_iter().filter(|one| fields.get(one.name()).is_some()).collect();
    if let Some(fields) = section(fields, "api_key", &API_KEY, context) {
        api_key(&fields, &mut clients, context);
    }
    clients.user = name_source(fields, "user", &USER, context);
    clients.tenant = name_source(fields, "tenant", &TENANT, context);
    if let Some(fields) = section(fields, "ip", &IP, context) {
        ip(&fields, &mut clients, context);
    }
    if let Some(fields) = section(fields, "fingerprint", &FINGERPRINT, context)
        && let Some(node) = fields.get("headers")
    {
        let items = scalar::one_or_many(node, "header", &mut context.report);
        clients.fingerprint_headers =
            items.iter().filter_map(|item| scalar::header(item, &mut context.report)).collect();
    }
    if let Some(fields) = section(fields, "cookie", &COOKIE, context)
        && let Some(node) = fields.require("name", &mut context.report)
    {
        clients.cookie = cookie(node, context);
    }
    if let Some(fields) = section(fields, "tiers", &TIERS, context) {
        clients.tiers = tier_source(&fields, tiers, &clients, context);
        if let (Some(node), true) = (fields.get("file"), clients.accepts_unverified_keys) {
            let finding = Finding::error(
                node,
                "`clients.tiers.file` and `clients.api_key.verify: none` contradict each other",
            );
            context.report.push(finding.hint("remove `clients.api_key.verify`; the file verifies API keys"));
        }
    }
    if let Some(fields) = section(fields, "exempt", &EXEMPT, context) {
        clients.exempt = exempt(&fields, context);
    }
    if let Some(node) = fields.get("on_invalid") {
        context.targets.chooses_on_invalid = true;
        let chosen = scalar::choice(
            node,
            "`on_invalid` value",
            &OnInvalid::NAMES,
            &OnInvalid::ALL,
            &mut context.report,
        );
        clients.on_invalid = chosen.unwrap_or_default();
    }
    if let Some(node) = fields.get("identify_by") {
        clients.identify_by = identify_by(node, &clients, context);
    }
    clients
}

fn api_key(fields: &Fields<'_, '_>, clients: &mut Clients, context: &mut CompileContext<'_, '_>) {
    if let Some(header) = fields.get("header").and_then(|node| scalar::header(node, &mut context.report)) {
        clients.api_key_header = header;
    }
    if let Some(node) = fields.get("verify") {
        context.targets.verify = NodeRef::from(node);
        let unverified =
            scalar::choice(node, "`verify` value", KEY_VERIFICATIONS, &[false, true], &mut context.report);
        // An invalid value has been reported; do not also report rules that count by API key.
        clients.accepts_unverified_keys = unverified.unwrap_or(true);
    }
}

/// Decodes `identify_by`. Unverified API keys are ignored, so `api_key` alone is an error then.
fn identify_by(
    node: &YamlNode<'_>,
    clients: &Clients,
    context: &mut CompileContext<'_, '_>,
) -> Vec<ClientKind> {
    context.targets.identify_by = Some(NodeRef::from(node));
    let chosen = scalar::choices(node, "identity", IDENTITIES, &ClientKind::NAMED, &mut context.report);
    let is_key_alone = chosen == [ClientKind::ApiKey];
    let unknown = chosen.iter().filter(|kind| **kind != ClientKind::ApiKey || is_key_alone);
    report_unconfigured(node, unknown.copied(), clients, context);
    chosen
}

fn section<'n, 's>(
    fields: &Fields<'n, 's>,
    key: &str,
    mapping: &'static Mapping,
    context: &mut CompileContext<'s, '_>,
) -> Option<Fields<'n, 's>> {
    fields.get(key).and_then(|node| Fields::open(node, mapping, &mut context.report))
}

/// Decodes one or several identities to count by; reports those that are not configured, unless callers name them.
pub(super) fn identities(
    node: &YamlNode<'_>,
    clients: &Clients,
    context: &mut CompileContext<'_, '_>,
) -> Vec<ClientKind> {
    let chosen = scalar::choices(node, "identity", IDENTITIES, &ClientKind::NAMED, &mut context.report);
    if context.has_routes {
        report_unconfigured(node, chosen.iter().copied(), clients, context);
    }
    chosen
}

/// Reports identities that no request can have.
fn report_unconfigured(
    node: &YamlNode<'_>,
    identities: impl Iterator<Item = ClientKind>,
    clients: &Clients,
    context: &mut CompileContext<'_, '_>,
) {
    for identity in identities.filter(|identity| !clients.can_identify(*identity)) {
        if identity == ClientKind::ApiKey {
            let what = "`api_key` cannot be used: API keys are not verified, so a client could send a new one with each request";
            context.report.push(Finding::error(node, what).hint(
                "list the valid keys in a file: `clients: { tiers: { file: keys.csv } }`; to accept any key: `clients: { api_key: { verify: none } }`",
            ));
            continue;
        }
        // An invalid configuration has been reported.
        if context.configured.contains(&identity) {
            continue;
        }
        let example = match identity {
            ClientKind::Cookie => "cookie: { name: session }",
            ClientKind::Tenant => "tenant: { header: X-Tenant }",
            _ => "user: { header: X-User-Id }",
        };
        let finding =
            Finding::error(node, format!("`{identity}` cannot be used: `clients.{identity}` is not set"));
        context.report.push(finding.hint(format!("add `{example}` to `clients`")));
    }
}

fn name_source<'s>(
    fields: &Fields<'_, 's>,
    key: &str,
    mapping: &'static Mapping,
    context: &mut CompileContext<'s, '_>,
) -> Option<NameSource> {
    let node = fields.get(key)?;
    let fields = Fields::open(node, mapping, &mut context.report)?;
    let header = fields.get("header").and_then(|node| scalar::header(node, &mut context.report));
    let token = fields.get("jwt").and_then(|node| token(node, context));
    match (fields.get("header"), fields.get("jwt")) {
        (Some(_), Some(jwt)) => {
            let finding = Finding::error(jwt, format!("`{key}` has both `header` and `jwt`"));
            context.report.push(finding.hint("remove one of them; set the header of the token in `jwt`"));
            None
        }
        (Some(node), None) => {
            context.targets.proxied.push(NodeRef::from(node));
            header.map(NameSource::Header)
        }
        (None, Some(node)) => {
            context.targets.token.get_or_insert(NodeRef::from(node));
            token.map(NameSource::Token)
        }
        (None, None) => {
            let finding = Finding::error(node, format!("`{key}` has neither `header` nor `jwt`"));
            let example = mapping.key("header").map_or("X-User-Id", |key| key.example);
            let finding = finding.expected("`header` or `jwt`");
            context.report.push(finding.hint(format!("add one of them, for example `header: {example}`")));
            None
        }
    }
}

fn token<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<TokenPlan> {
    let fields = Fields::open(node, &JWT, &mut context.report)?;
    let report = &mut context.report;
    let header = fields.get_or("header", "authorization".to_owned(), |node| scalar::header(node, report));
    let claim = fields
        .get_or("claim", "sub", |node| scalar::text(node, "the name of a claim, for example `sub`", report));
    let key = match (fields.get("secret_file"), fields.get("jwks_file")) {
        (Some(_), Some(both)) => {
            let finding = Finding::error(both, "`jwt` has both `secret_file` and `jwks_file`");
            context
                .report
                .push(finding.hint("keep the one that your tokens are signed with, and remove the other"));
            None
        }
        (Some(node), None) => secret(node, context),
        (None, Some(node)) => key_set(node, context),
        (None, None) => {
            let finding = Finding::error(node, "`jwt` has no key to verify tokens with");
            let finding = finding.expected("`secret_file` (HS256) or `jwks_file` (RS256, ES256)");
            context
                .report
                .push(finding.hint("add one of them; anyone can forge a token that is not verified"));
            None
        }
    };
    let (key, verifier) = key?;
    Some(TokenPlan {
        header: header?,
        claim: ClaimName(claim?.to_owned()),
        key,
        verifier: Arc::new(verifier),
    })
}

fn secret(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<(TokenKey, Verifier)> {
    let file = files::read_file(node, context)?;
    let secret = file.bytes.trim_ascii_end();
    if secret.len() < MIN_SECRET_LENGTH {
        let what = format!("the secret in {} is too short: {} bytes", quote(&file.shown), secret.len());
        let finding = Finding::error(node, what).expected(format!("at least {MIN_SECRET_LENGTH} bytes"));
        context.report.push(finding.hint("create one with `openssl rand -base64 32`"));
        return None;
    }
    let verifier = check_verifier(node, &file.shown, Verifier::hs256(secret), context)?;
    Some((TokenKey::Secret { secret: Secret::new(secret), file: file.name }, verifier))
}

fn key_set(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<(TokenKey, Verifier)> {
    let file = files::read_file(node, context)?;
    let set: Option<serde_json::Value> = serde_json::from_slice(&file.bytes).ok();
    let keys = set.as_ref().and_then(|set| set.get("keys")).and_then(serde_json::Value::as_array);
    if keys.is_none_or(Vec::is_empty) {
        let finding = Finding::error(node, format!("{} is not a JSON Web Key Set", quote(&file.shown)));
        context.report.push(finding.expected("JSON, for example {\"keys\": [{\"kty\": \"RSA\", …}]}"));
        return None;
    }
    let verifier = check_verifier(node, &file.shown, Verifier::jwks(&file.bytes), context)?;
    Some((
        TokenKey::KeySet { json: String::from_utf8_lossy(&file.bytes).into_owned(), file: file.name },
        verifier,
    ))
}

fn check_verifier(
    node: &YamlNode<'_>,
    file: &str,
    verifier: Result<Verifier, KeysError>,
    context: &mut CompileContext<'_, '_>,
) -> Option<Verifier> {
    verifier
        .map_err(|error| {
            let finding = Finding::error(node, format!("{} cannot verify tokens: {error}", quote(file)));
            context
                .report
                .push(finding.expected("a secret for HS256, or a key set with an RS256 or ES256 key"));
        })
        .ok()
}

fn ip(fields: &Fields<'_, '_>, clients: &mut Clients, context: &mut CompileContext<'_, '_>) {
    if let Some(node) = fields.get("trusted_proxies") {
        let found = network::networks(node, &mut context.report);
        (clients.trusted_proxies, context.targets.trusted_proxies) = found.into_iter().unzip();
    }
    if let Some(node) = fields.get("ipv6_prefix")
        && let Some(bits) = scalar::positive(node, "`ipv6_prefix`", &mut context.report)
    {
        if let Some(bits) = u8::try_from(bits).ok().filter(|bits| *bits <= 128) {
            clients.ipv6_prefix = bits;
        } else {
            let finding = Finding::error(node, "`ipv6_prefix` must be at most 128");
            context
                .report
                .push(finding.expected("1 to 128").hint("use 64, the usual prefix length of one customer"));
        }
    }
}

fn cookie(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<String> {
    let text = scalar::text(node, "a cookie name, for example `session`", &mut context.report)?;
    if !scalar::is_token(text) {
        let finding = Finding::error(node, format!("invalid cookie name {}", quote(text)));
        context.report.push(finding.hint("write only the name, for example `session`"));
        return None;
    }
    Some(text.to_owned())
}

fn tier_source(
    fields: &Fields<'_, '_>,
    tiers: &[&str],
    clients: &Clients,
    context: &mut CompileContext<'_, '_>,
) -> TierSource {
    let file = fields.get("file").map(|node| {
        // An unreadable file has been reported; do not also report API keys as unverified.
        let Some(file) = files::read_file(node, context) else { return String::new() };
        match directory::file::read(&file.shown, &file.bytes, tiers) {
            Ok(directory) => context.directory = Some(Arc::new(directory)),
            Err(problems) => context.report.push_others(&problems),
        }
        file.name
    });
    let default = fields.get("default").and_then(|node| {
        let name = scalar::text(node, "the name of a tier, for example `free`", &mut context.report)?;
        let found = tiers.iter().position(|tier| *tier == name);
        if found.is_none() {
            let finding = Finding::error(node, format!("unknown tier {}", quote(name)));
            let hint = format!("add it to `rate_limits.tiers`, with a limit or as `{name}: unlimited`");
            context.report.push(finding.hint(hint).did_you_mean(nearest(name, tiers.iter().copied())));
        }
        found
    });
    TierSource { file, sent: sent_tier(fields, clients, context), default }
}

fn sent_tier(
    fields: &Fields<'_, '_>,
    clients: &Clients,
    context: &mut CompileContext<'_, '_>,
) -> Option<SentTier> {
    let (claim, header) = (fields.get("claim"), fields.get("header"));
    context.targets.sent_tier = NodeRef::from(claim.or(header)?);
    if let (Some(_), Some(node)) = (claim, header) {
        let finding = Finding::error(node, "`tiers` has both `claim` and `header`");
        context.report.push(finding.hint("keep the one that assigns tiers, and remove the other"));
        return None;
    }
    if let Some(node) = header {
        context.targets.proxied.push(NodeRef::from(node));
        return scalar::header(node, &mut context.report).map(SentTier::Header);
    }
    let node = claim?;
    let name = scalar::text(node, "the name of a claim, for example `plan`", &mut context.report)?;
    // A source that is invalid has been reported.
    let is_reported =
        |source: &Option<NameSource>, kind| source.is_none() && context.configured.contains(&kind);
    let may_have_token =
        is_reported(&clients.user, ClientKind::User) || is_reported(&clients.tenant, ClientKind::Tenant);
    if clients.tier_token().is_none() && !may_have_token {
        let finding =
            Finding::error(node, "`claim` has no token to read: neither user nor tenant comes from one");
        let hint = "say how tokens are verified: `clients: { user: { jwt: { jwks_file: jwks.json } } }`";
        context.report.push(finding.hint(hint));
    }
    Some(SentTier::Claim(ClaimName(name.to_owned())))
}

fn exempt(fields: &Fields<'_, '_>, context: &mut CompileContext<'_, '_>) -> ExemptClients {
    let mut exempt = ExemptClients::default();
    if let Some(node) = fields.get("networks") {
        let found = network::networks(node, &mut context.report);
        (exempt.networks, context.targets.exempt_networks) = found.into_iter().unzip();
    }
    if let Some(node) = fields.get("api_keys_file")
        && let Some(file) = files::read_file(node, context)
    {
        let form = KeyForm::Hashed;
        let invalid: Vec<_> = files::lines(&file.bytes)
            .filter(|(_, line)| form.listed(line).is_err())
            .map(|(number, _)| (number, LineError::Hash.to_string()))
            .collect();
        files::report_invalid_lines(
            node,
            &file.name,
            &invalid,
            "one API key, or its hash, per line",
            context,
        );
        exempt.api_keys = files::lines(&file.bytes).map(|(_, line)| Secret::new(line)).collect();
        exempt.api_keys.sort();
        exempt.api_keys.dedup();
    }
    exempt
}
