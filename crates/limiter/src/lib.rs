//! Decides whether a request is admitted.
//!
//! A [`Limiter`] combines a policy with a store. It checks bans and lock-outs, takes concurrency permits, gets one decision
//! over all limits from the store, and records violations. The [`Ruling`] states what to do with the request and what to
//! report. The limiter does not handle connections, proxying or response texts, so the gateway and integrations with other
//! proxies and languages use the same one.
//!
//! There are three kinds of checks:
//!
//! - [`Limiter::check`]: a request, as [`Facts`](tidegate_policy::Facts). The policy decides which rules apply.
//! - [`Limiter::check_rule`]: one rule by its name, for a client that the caller has identified.
//! - [`Limiter::check_limits`]: limits that the caller supplies.
//!
//! ```
//! use std::sync::Arc;
//!
//! use http::HeaderMap;
//! use tidegate_limiter::{Limiter, Ruling};
//! use tidegate_policy::{ActivePolicy, Facts, NoFiles, Scratch, compile};
//! use tidegate_store::{Clock, MemoryStore, SystemClock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = b"rate_limits: { default: { requests: 2, window: 1m } }";
//! let active = ActivePolicy::new(compile("policy.yaml", policy, &NoFiles)?.plan);
//! let clock = Arc::new(SystemClock::new());
//! let limiter = Limiter::new(active, Arc::new(MemoryStore::with_cap(1 << 20)), Arc::clone(&clock) as Arc<dyn Clock>)?;
//!
//! let headers = HeaderMap::new();
//! let facts = Facts { method: "GET", host: Some(""), path: "/", headers: &headers, peer: [192, 0, 2, 1].into(), body: tidegate_policy::BodyFacts::Unknown };
//! let (policy, mut scratch) = (limiter.policy(), Scratch::default());
//! let now = clock.now();
//! for _ in 0..2 {
//!     assert!(matches!(limiter.check(&policy, &facts, &mut scratch, now).await, Ruling::Serve(_)));
//! }
//! let Ruling::Refuse(refused) = limiter.check(&policy, &facts, &mut scratch, now).await else { panic!() };
//! assert_eq!(refused.report.limits()[0].name, "default");
//! assert!(refused.retry_after.is_some());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod action;
mod activation;
mod ban_list;
mod charge;
mod conclusion;
mod concurrency;
mod decision;
mod limiter;
mod lockout;
mod report;
mod reset_list;
mod rule_operations;
mod ruling;
mod wait;

pub use activation::ActivationListener;
pub use charge::{Charge, ChargeMeter, ChargeUse};
pub use limiter::{CheckContext, Limiter, PreparedPolicy, RuleCheck};
pub use report::{ReportedLimits, RulingReport};
pub use rule_operations::{RuleError, UnknownRule};
pub use ruling::{ActRuling, RefuseReason, RefuseRuling, Ruling, ServeReason, ServeRuling};
pub use wait::{Turn, WaitBounds, WaitPlace, WaitRoom, WaitTerms};

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
