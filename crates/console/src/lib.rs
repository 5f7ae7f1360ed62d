//! What operators ask and change while the gateway runs: the admin API.
//!
//! `server` is a listener with a thread of its own, so that nothing here can disturb whoever serves requests; `door` says
//! who may come in; `api` has the endpoints, one file each; `desk` keeps bans and overrides in force and in the durable
//! store. What is asked about is behind the trait [`Running`]: this crate knows no gateway.

#![forbid(unsafe_code)]

mod answer;
mod api;
mod connections;
mod desk;
mod door;
mod running;
mod server;
mod token;

pub use desk::{Desk, RestoreError};
pub use running::{ReloadError, Reloaded, Running};
pub use server::{Console, StartError};
pub use token::{Token, TokenError};
