//! Evaluates one request against the limits: `global` → `tenant` → tier or `default` → rules → endpoint.

use tidegate_core::{Cost, Timestamp};

use crate::facts::Facts;
use crate::identity::{BodyUser, ClientKind, Identity, NotLockedOut};
use crate::matcher::Matcher;
use crate::matcher::condition::{self, ConditionResult};
use crate::matcher::matched::{
    Admission, AppliedRule, BanSource, ByteRange, Exemption, MatchedRequest, RuleRef, RuntimeData, Scratch,
};
use crate::path::Readings;
use crate::plan::{CounterScope, PathCase, Tier};

impl Matcher {
    /// Matches a request to the policy. Bans come first, then exemptions, then the checks of all rules that apply.
    ///
    /// `runtime` is a directory, or a directory and bans; `now` is the time of the decision. Once `scratch` has grown, only
    /// expressions, token verification and requests with more than eight checks allocate.
    pub fn admit<'a, 'k>(
        &'a self,
        facts: &Facts<'_>,
        runtime: impl Into<RuntimeData<'k>>,
        now: Timestamp,
        scratch: &'a mut Scratch,
    ) -> Admission<'a, 'k> {
        let RuntimeData { directory, bans } = runtime.into();
        let identity = self.plan.identities.identify(facts, directory, now);
        // A ban overrides an exemption, so that an operator can block every client.
        if !self.bans.is_empty()
            && let Some(network) = self.bans.find_banned(identity.address())
        {
            return Admission::Banned { by: BanSource::Policy(network) };
        }
        if let Some(ban) = bans.and_then(|bans| bans.find(&identity, now)) {
            return Admission::Banned { by: BanSource::Operator(ban) };
        }
        if let Some(allowed) = &self.allowed
            && allowed.find(identity.address()).is_none()
        {
            return Admission::Banned { by: BanSource::NotAllowed };
        }
        if let Some(why) = self.exemption(&identity) {
            return Admission::Exempt { why };
        }
        let Scratch { bytes, found, applied, readings } = scratch;
        bytes.clear();
        found.clear();
        applied.clear();
        let case = self.path_case(facts);
        readings.set(facts.path, case);
        let readings = &*readings;
        let mut evaluator = Evaluator {
            identity: &identity,
            kind: identity.kind(),
            readings,
            bytes,
            applied,
            cached: [None; KINDS],
            body_user: None,
        };
        let client = evaluator.client();
        let tier = self.tier(&identity);
        evaluator.apply_limits(self, client, tier);
        self.find_rules(facts.path, case, readings, found);
        let tier_name = tier.map(|(_, tier)| tier.name.as_str());
        let rates = found.partition_point(|index| (*index as usize) < self.plan.rate_limits.rules.len());
        let (rate_rules, concurrency_rules) = found.split_at(rates);
        for &index in rate_rules {
            evaluator.apply_custom(self, index as usize, tier_name);
        }
        self.paths.each(facts.path, case, readings, |table, path| {
            if let Some(&endpoint) = table.endpoints.find(facts.method, path) {
                evaluator.apply_endpoint(endpoint, client);
            }
        });
        let checks = evaluator.applied.len();
        for &index in concurrency_rules {
            evaluator.apply_concurrency(self, index as usize, tier_name);
        }
        let not_locked_out =
            if self.has_penalties { identity.not_locked_out() } else { NotLockedOut::default() };
        Admission::Checked(MatchedRequest::new(&self.plan, scratch, checks, client, not_locked_out))
    }

    /// Whether a rule counts the user that the body of this request names: its body is to be received first, up to
    /// [`MAX_USER_BODY`](crate::MAX_USER_BODY) bytes of it.
    pub fn reads_body(&self, facts: &Facts<'_>, scratch: &mut Scratch) -> bool {
        if !self.has_body_users {
            return false;
        }
        let Scratch { found, readings, .. } = scratch;
        found.clear();
        let case = self.path_case(facts);
        readings.set(facts.path, case);
        self.find_rules(facts.path, case, readings, found);
        let mut rules = found.iter().filter_map(|index| self.plan.rate_limits.rules.get(*index as usize));
        rules.any(|custom| custom.body_user.is_some() && condition::has_method(&custom.matches, facts.method))
    }

    /// The check of the rule `name` for a client that the caller has identified; `None` if there is no such rule. `client`
    /// is the counter key of the client. Rules that count all clients together ignore it.
    pub fn match_rule<'a>(
        &'a self,
        name: &str,
        client: &[u8],
        cost: Cost,
        scratch: &'a mut Scratch,
    ) -> Option<MatchedRequest<'a>> {
        self.match_rules(&[(name, client, cost)], scratch)
    }

    /// The checks of rules, each for a client and a cost, to be decided together. `None` if there is no rule with one of the
    /// names. The client of the first counts as the client of the whole.
    pub fn match_rules<'a>(
        &'a self,
        checks: &[(&str, &[u8], Cost)],
        scratch: &'a mut Scratch,
    ) -> Option<MatchedRequest<'a>> {
        let Scratch { bytes, found, applied, .. } = scratch;
        bytes.clear();
        found.clear();
        applied.clear();
        for &(name, client, cost) in checks {
            let rule_ref = *self.rules_by_name.get(name)?;
            let start = bytes.len();
            bytes.extend_from_slice(client);
            let counts_everybody = rule_ref.counts_everybody(&self.plan);
            applied.push(AppliedRule {
                rule_ref,
                client: if counts_everybody { (0, 0) } else { range(start, bytes.len()) },
                cost,
                condition_failed: false,
                cost_is_unknown: false,
            });
        }
        let client = range(0, checks.first().map_or(0, |(_, client, _)| client.len()));
        Some(MatchedRequest::new(&self.plan, scratch, checks.len(), client, NotLockedOut::default()))
    }

    /// Which clients the rule `name` counts together; `None` if there is no such rule.
    pub fn rule_scope(&self, name: &str) -> Option<&CounterScope> {
        match *self.rules_by_name.get(name)? {
            RuleRef::Global => Some(&CounterScope::Everybody),
            RuleRef::Custom(at) => self.plan.rate_limits.rules.get(at).map(|custom| &custom.count),
            _ => Some(&CounterScope::Client),
        }
    }

    /// Whether the rule `name` is the limit of each tenant.
    pub fn counts_tenants(&self, name: &str) -> bool {
        matches!(self.rules_by_name.get(name), Some(RuleRef::Tenant))
    }

    fn exemption(&self, identity: &Identity<'_>) -> Option<Exemption> {
        if !self.exempt.is_empty()
            && let Some(network) = self.exempt.find(identity.address())
        {
            return Some(Exemption::Network(network));
        }
        if self.exempt_keys.is_empty() {
            return None;
        }
        // An exempt key need not be in the directory.
        let key = identity.sent_key()?;
        self.exempt_keys.contains(key).then_some(Exemption::ApiKey)
    }

    /// The client's tier and its index: that of its API key, or else the one that the request names. If the directory was built for another plan, the tier is found by name.
    pub(crate) fn tier<'a>(&'a self, identity: &Identity<'_>) -> Option<(usize, &'a Tier)> {
        let tiers = &self.plan.rate_limits.tiers;
        let granted = identity.grant().and_then(|grant| {
            let known = tiers.get(grant.tier_index).filter(|tier| tier.name == grant.tier);
            known
                .map(|tier| (grant.tier_index, tier))
                .or_else(|| tiers.iter().enumerate().find(|(_, tier)| tier.name == grant.tier))
        });
        let sent = || {
            let name = identity.sent_tier()?;
            tiers.iter().enumerate().find(|(_, tier)| tier.name.as_bytes() == name)
        };
        granted.or_else(sent).or_else(|| {
            let default = self.plan.clients.tiers.default?;
            tiers.get(default).map(|tier| (default, tier))
        })
    }

    /// Finds the rules whose path matches any reading of the request's path, in the order of the policy, without
    /// duplicates.
    fn find_rules(&self, path: &str, case: PathCase, readings: &Readings, found: &mut Vec<u32>) {
        found.extend_from_slice(&self.everywhere);
        let sorted = found.len();
        self.paths.each(path, case, readings, |table, path| {
            table.rules.visit(path, &mut |index| found.push(index));
        });
        if found.len() > sorted {
            found.sort_unstable();
            found.dedup();
        }
    }
}

const KINDS: usize = ClientKind::NAMED.len() + 1;

/// Collects the rules that apply to one request.
struct Evaluator<'w, 'a> {
    identity: &'w Identity<'a>,
    /// The kind of identity that identifies the client.
    kind: ClientKind,
    /// The alternative readings of the path.
    readings: &'w Readings,
    bytes: &'w mut Vec<u8>,
    applied: &'w mut Vec<AppliedRule>,
    /// The identities that are already in `bytes`.
    cached: [Option<ByteRange>; KINDS],
    /// The user of the present rule, if it is one that the body names.
    body_user: Option<BodyUser>,
}

impl Evaluator<'_, '_> {
    fn apply_limits(&mut self, matcher: &Matcher, client: ByteRange, tier: Option<(usize, &Tier)>) {
        let limits = &matcher.plan.rate_limits;
        if limits.global.is_some() {
            self.apply(RuleRef::Global, (0, 0), Cost::ONE);
        }
        if limits.tenant.is_some() {
            let tenant = self.identity_or_client(ClientKind::Tenant);
            self.apply(RuleRef::Tenant, tenant, Cost::ONE);
            if let Some(other) = self.other_tenant(&[ClientKind::Tenant]) {
                self.apply(RuleRef::Tenant, other, Cost::ONE);
            }
        }
        match tier {
            Some((at, tier)) if tier.rule.is_some() => self.apply(RuleRef::Tier(at), client, Cost::ONE),
            None if limits.default.is_some() => self.apply(RuleRef::Default, client, Cost::ONE),
            // The tier is unlimited, or there is no default limit.
            Some(_) | None => {}
        }
    }

    fn apply_custom(&mut self, matcher: &Matcher, index: usize, tier: Option<&str>) {
        let Some(custom) = matcher.plan.rate_limits.rules.get(index) else { return };
        let result = condition::evaluate(&custom.matches, self.identity, tier, self.readings);
        if result != ConditionResult::False {
            let cost = condition::cost(custom, self.identity.facts().headers);
            let first = self.applied.len();
            let facts = self.identity.facts();
            self.body_user = custom.body_user.as_ref().map(|field| BodyUser::read(facts, field));
            self.apply_scope(RuleRef::Custom(index), &custom.count, cost.unwrap_or(Cost::ONE), result);
            self.body_user = None;
            for applied in self.applied.iter_mut().skip(first) {
                applied.cost_is_unknown = cost.is_none();
            }
        }
    }

    /// Applies a concurrency rule. `index` continues the numbering of the rate rules.
    fn apply_concurrency(&mut self, matcher: &Matcher, index: usize, tier: Option<&str>) {
        let limits = &matcher.plan.rate_limits;
        let index = index.saturating_sub(limits.rules.len());
        let Some(rule) = limits.concurrent.get(index) else { return };
        let result = condition::evaluate(&rule.matches, self.identity, tier, self.readings);
        if result != ConditionResult::False {
            self.apply_scope(RuleRef::ConcurrencyCheck(index), &rule.count, Cost::ONE, result);
        }
    }

    /// Applies the limit of an endpoint, unless another reading of the path has matched it already.
    fn apply_endpoint(&mut self, endpoint: usize, client: ByteRange) {
        let is_new = !self
            .applied
            .iter()
            .any(|other| matches!(other.rule_ref, RuleRef::Endpoint(at) if at == endpoint));
        if is_new {
            self.apply(RuleRef::Endpoint(endpoint), client, Cost::ONE);
        }
    }

    fn apply_scope(&mut self, rule_ref: RuleRef, count: &CounterScope, cost: Cost, result: ConditionResult) {
        let first = self.applied.len();
        match count {
            CounterScope::Client => {
                let client = self.client();
                self.apply(rule_ref, client, cost);
            }
            CounterScope::Everybody => self.apply(rule_ref, (0, 0), cost),
            CounterScope::Per(kinds) => {
                let client = self.combination(kinds);
                self.apply(rule_ref, client, cost);
                if let Some(other) = self.other_tenant(kinds) {
                    self.apply(rule_ref, other, cost);
                }
            }
            CounterScope::PerEach(kinds) => {
                for kind in kinds {
                    let client = self.identity_or_client(*kind);
                    // The client may replace several missing identities; count it once.
                    let is_new = self.applied.iter().skip(first).all(|other| other.client != client);
                    if is_new {
                        self.apply(rule_ref, client, cost);
                    }
                }
                if kinds.contains(&ClientKind::Tenant)
                    && let Some(other) = self.other_tenant(&[ClientKind::Tenant])
                {
                    self.apply(rule_ref, other, cost);
                }
            }
        }
        if self.body_user.is_some() {
            // A client can send any name.
            let address = self.identity_or_client(ClientKind::Ip);
            if self.applied.iter().skip(first).all(|other| other.client != address) {
                self.apply(rule_ref, address, cost);
            }
        }
        for applied in self.applied.iter_mut().skip(first) {
            applied.condition_failed = result == ConditionResult::Failed;
        }
    }

    fn apply(&mut self, rule_ref: RuleRef, client: ByteRange, cost: Cost) {
        self.applied.push(AppliedRule {
            rule_ref,
            client,
            cost,
            condition_failed: false,
            cost_is_unknown: false,
        });
    }

    /// The client as identified by `identify_by`.
    fn client(&mut self) -> ByteRange {
        let body_user = self.body_user.take();
        let client = self.find(self.kind).unwrap_or_default();
        self.body_user = body_user;
        client
    }

    /// The identity of this kind, or the client if the request has none. Omitting a header leads to another counter, never
    /// around the limit.
    fn identity_or_client(&mut self, kind: ClientKind) -> ByteRange {
        self.find(kind).unwrap_or_else(|| self.client())
    }

    /// The key that combines all `kinds`.
    fn combination(&mut self, kinds: &[ClientKind]) -> ByteRange {
        if let [kind] = kinds {
            return self.identity_or_client(*kind);
        }
        let start = self.bytes.len();
        for kind in kinds {
            if !self.append(*kind) {
                self.identity.append(self.kind, self.bytes);
            }
        }
        range(start, self.bytes.len())
    }

    /// Appends the counter key of an identity to `bytes`. Returns whether the request has one.
    fn append(&mut self, kind: ClientKind) -> bool {
        match &self.body_user {
            Some(user) if kind == ClientKind::User => user.append(self.bytes),
            _ => self.identity.append(kind, self.bytes),
        }
    }

    /// The key that combines all `kinds` with the tenant that the request names, if that of its API key is another one: an API key
    /// of one tenant leads not around the limits of the other.
    fn other_tenant(&mut self, kinds: &[ClientKind]) -> Option<ByteRange> {
        if !kinds.contains(&ClientKind::Tenant) || self.identity.other_tenant().is_none() {
            return None;
        }
        let start = self.bytes.len();
        for kind in kinds {
            let is_found = match kind {
                ClientKind::Tenant => self.identity.append_other_tenant(self.bytes),
                other => self.append(*other),
            };
            if !is_found {
                self.identity.append(self.kind, self.bytes);
            }
        }
        Some(range(start, self.bytes.len()))
    }

    /// The range of the identity of this kind in `bytes`, if the request has one.
    fn find(&mut self, kind: ClientKind) -> Option<ByteRange> {
        // The user that the body names is another one than that of other rules.
        let is_body_user = kind == ClientKind::User && self.body_user.is_some();
        let cached = self.cached.get(kind as usize).copied().flatten();
        if cached.is_some() && !is_body_user {
            return cached;
        }
        let start = self.bytes.len();
        if !self.append(kind) {
            return None;
        }
        let found = range(start, self.bytes.len());
        if !is_body_user && let Some(slot) = self.cached.get_mut(kind as usize) {
            *slot = Some(found);
        }
        Some(found)
    }
}

/// Saturates; no request is near 4 GiB.
fn range(start: usize, end: usize) -> ByteRange {
    let number = |at| u32::try_from(at).unwrap_or(u32::MAX);
    (number(start), number(end))
}
