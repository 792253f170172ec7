//! Real Redis servers for tests: a single server, a server with a replica, or a cluster of three masters.
//!
//! Each runs on free loopback ports with a temporary directory and without persistence. It stops when its value is
//! dropped, and when the test process ends for any reason. The binary is `LIMITER_REDIS_SERVER`, or `redis-server` or
//! `valkey-server` on the path. Without a binary, starting fails and the error explains how to install one.

mod cluster;
mod process;

pub use cluster::Cluster;
pub use process::{Server, until};
