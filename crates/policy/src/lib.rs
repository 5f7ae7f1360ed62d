//! Policies: parsing, validation, and matching of requests to rules.
//!
//! [`compile()`] parses the YAML of a policy into a tree with source positions and turns that into a [`Plan`], which is
//! valid by construction. Only [`compile()`] can fail. It reports all [`Problem`]s in one run, each with file, line, path
//! in the document and a hint. This crate does no I/O: the caller provides the files a policy refers to as [`Files`].
//!
//! ```
//! use tidegate_policy::{NoFiles, compile, diff};
//!
//! let old = compile("old.yaml", b"rate_limits: { default: { requests: 100, window: 1m } }", &NoFiles)?;
//! let new = compile("new.yaml", b"rate_limits: { default: { requests: 200, window: 1m } }", &NoFiles)?;
//! let changes = diff(&old.plan, &new.plan);
//! assert_eq!(
//!     changes[0].to_string(),
//!     "rule `default` changed: 100 per 1m, sliding_window_counter → 200 per 1m, sliding_window_counter; counters kept"
//! );
//! # Ok::<(), tidegate_policy::Problems>(())
//! ```

#![forbid(unsafe_code)]

mod bans;
mod compile;
mod diff;
mod directory;
mod endpoints;
mod envoy;
mod explain;
mod expression;
mod facts;
mod files;
mod host;
mod identity;
mod language;
mod matcher;
mod networks;
mod path;
mod plan;
mod problem;
mod published;
mod raw;
mod render;
mod request;
mod units;
mod warnings;

pub use bans::{Ban, Bans, Subject, SubjectError};
pub use compile::{
    AdminLocation, CompileOptions, CompiledPolicy, MAX_FILE_SIZE, ServiceAddresses, compile, compile_with,
    locate_admin,
};
pub use diff::{ChangeKind, CounterEffect, PolicyChange, diff};
pub use directory::{Directory, DirectoryError, Grant, LineError, LineProblem};
pub use endpoints::{DuplicateEndpoint, EndpointPattern, Endpoints, PatternError};
pub use envoy::{DescriptorLimit, EnvoyDomain, EnvoyFile, EnvoyLimits, EnvoyRate, RateUnit};
pub use explain::{
    ExplainRequest, ExplainedCheck, ExplainedClient, ExplainedConcurrency, ExplainedOutcome, ExplainedRoute,
    ExplainedRule, ExplainedSharing, ExplainedVerdict, Explanation, LiveCounters, explain, explain_live,
};
pub use expression::{EvaluationError, Expression, ExpressionError, ExpressionPosition};
pub use facts::{BodyFacts, Facts};
pub use files::{FileError, Files, NoFiles};
pub use host::{normalize_host, split_port};
pub use identity::{
    Addresses, ClaimSource, Claims, ClientKind, ClientName, ClientNameError, ConfusedHeaders, CookieName,
    CookieNameError, Fingerprint, FingerprintError, ForwardingHeader, HeaderError, HeaderRules, Identities,
    Identity, IdentityError, IdentitySource, IdentitySpec, KeysError, MAX_USER_BODY, PrefixError, RuleClient,
    TokenError, TrustedChain, Verifier,
};
pub use language::{reference, schema};
pub use matcher::{
    ActivePolicy, Admission, AppliedRules, BanSource, ChargedCheck, CheckResult, ConcurrencyCheck, Exclusion,
    Exemption, MatchedRequest, Matcher, PooledScratch, RuntimeData, Scratch, ScratchPool, Settlement,
};
pub use path::{PathError, normalize};
pub use plan::{
    AdminPlan, Balance, BreakerPlan, BreakerScope, BulkheadPlan, CanaryShare, CertificatePlan, ChargeBasis,
    ClaimName, ClientCaPlan, Clients, ConcurrencyRule, CounterScope, CustomRule, DeferAction,
    DegradedUpstream, EjectPlan, EncodedSlash, EndpointRule, ExceedAction, ExcessiveLoss, ExemptClients,
    FallbackBody, FallbackPlan, HeaderMatch, HealthCheckPlan, HostPattern, HttpOptions, ListenerPlan,
    LogPlan, LogTarget, Mode, NameSource, OnInvalid, PathCase, Plan, Quota, RateLimits, RejectionPlan,
    ReloadPlan, ResiliencePlan, RetryBudgetPlan, RetryCauses, RetryPlan, Route, Rule, RuleCondition,
    RuleCost, RuleMatch, RuleSharing, SampleRate, Secret, SecretFile, SentTier, ServiceListenerPlan,
    ServicePlan, StatusSet, StorePlan, StoreTlsPlan, StoreUrl, Tier, TierSource, TimeoutsPlan, TokenKey,
    TokenPlan, TracesPlan, UnderscoreHeaders, UpstreamPlan,
};
pub use problem::{Excerpt, Problem, Problems, Severity};
pub use published::{PublishedLimit, PublishedLimits, published_limits};
pub use request::{
    HeaderTraits, NormalRequest, ReadOptions, RequestError, RequestHead, check_http1_headers,
    check_transfer_encoding, has_unusual_character, is_proxy_header, trim_value,
};
pub use units::{QuantityError, duration, span_text, split_rate};

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
