//! The admin API of a running gateway.
//!
//! `server` is a listener with its own thread, so that the API cannot slow down the gateway. `auth` authorizes requests,
//! `api` has one file for each group of endpoints, and `state` keeps bans and overrides active and in the durable store.
//! The gateway is behind the trait [`Backend`], so this crate does not depend on it.

#![forbid(unsafe_code)]

mod api;
mod auth;
mod backend;
mod connections;
mod gateway_paths;
mod proof;
mod response;
mod server;
mod state;
mod token;

pub use backend::{Backend, BreakerAction, BreakerError, ReloadError, ReloadReport, ReloadState};
pub use gateway_paths::GatewayPaths;
pub use proof::{ConnectionAddresses, ServerChallenge};
pub use server::{AdminServer, AdminStartError};
pub use state::{AdminState, RestoreError};
pub use token::{AdminToken, AdminTokenError};
