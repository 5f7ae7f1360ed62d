//! Other programs, each killed when its handle is dropped.

mod child;
mod nginx;
mod policy_file;
mod redis_server;
mod tidegate;

pub use child::Process;
pub use nginx::Nginx;
pub use policy_file::PolicyFile;
pub use redis_server::RedisServer;
pub use tidegate::Tidegate;
