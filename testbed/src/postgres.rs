//! The faults of a Postgres server: the statements of one session that begin and end each.

/// A session has locked the table, as `VACUUM FULL` and `ALTER TABLE` do.
pub const LOCKED_TABLE: [&str; 2] = ["BEGIN; LOCK TABLE limiter_logs;", "ROLLBACK;"];
/// The synchronous standby is gone, so no transaction is confirmed.
pub const NO_STANDBY: [&str; 2] = [
    "ALTER SYSTEM SET synchronous_standby_names = 'gone'; SELECT pg_reload_conf();",
    "ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf();",
];
/// The server only reads, as a standby does.
pub const READ_ONLY: [&str; 2] = [
    "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf();",
    "ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf();",
];
/// Terminates all sessions of the stores.
pub const TERMINATE: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'limiter';";
