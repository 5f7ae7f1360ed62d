//! Other programs, each killed when its handle is dropped.

mod child;
mod nginx;
mod policy_file;
mod redis_cluster;
mod redis_command;
mod redis_sentinel;
mod redis_server;
mod tidegate;

pub use child::Process;
pub use nginx::Nginx;
pub use policy_file::PolicyFile;
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_server::{RedisOptions, RedisServer};
pub use tidegate::Tidegate;
