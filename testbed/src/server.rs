//! Real servers for tests: a Redis server, one with a replica, a cluster of three masters, a Postgres server, and a `PgBouncer`.
//!
//! Each runs on free loopback ports with a temporary directory, and Redis without persistence. It stops when its value is
//! dropped, and when the test process ends for any reason. The binary is `LIMITER_REDIS_SERVER`, or `redis-server` or
//! `valkey-server` on the path. The folder of Postgres' programs is `LIMITER_POSTGRES_BIN`, or the folder of the newest version of Debian's
//! packages, or the folder of `initdb` on the path. Without a binary, starting fails and the error explains how to install one.

mod cluster;
mod keeper;
mod pgbouncer;
mod postgres;
mod process;

pub use cluster::Cluster;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use process::{Server, until};
