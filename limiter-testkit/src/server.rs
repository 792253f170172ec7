//! Real Redis servers for tests: one, one with a replica, a cluster of three masters.
//!
//! Each runs on free ports of the loopback with a temporary directory and without persistence, and ends with its value,
//! or with the test process however that ends. The program is `LIMITER_REDIS_SERVER`, or `redis-server` or
//! `valkey-server` on the path. Without one, starting fails and says how to install it.

mod cluster;
mod process;
mod wire;

pub use cluster::Cluster;
pub use process::Server;
pub use wire::Reply;
