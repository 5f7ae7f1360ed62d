//! What operators ask and change while the gateway runs: the admin API.
//!
//! `server` is a listener with a thread of its own, so that nothing here can disturb whoever serves requests; `auth` says
//! who may come in; `api` has the endpoints, one file each; `state` keeps bans and overrides in force and in the durable
//! store. What is asked about is behind the trait [`Backend`]: this crate knows no gateway.

#![forbid(unsafe_code)]

mod api;
mod auth;
mod backend;
mod connections;
mod response;
mod server;
mod state;
mod token;

pub use backend::{Backend, ReloadError, Reloaded};
pub use server::{AdminServer, AdminStartError};
pub use state::{AdminState, RestoreError};
pub use token::{AdminToken, AdminTokenError};
