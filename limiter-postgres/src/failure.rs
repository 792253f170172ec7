//! The errors of Postgres and of the pool, in the kinds of the contract.

use deadpool_postgres::{HookError, PoolError};
use limiter_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

pub(crate) fn of_pool(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            of_postgres(&error)
        }
        PoolError::Timeout(_) => timeout("no connection of the pool became free in time"),
        error => Error::new(ErrorKind::Configuration, format!("Postgres: {error}")),
    }
}

pub(crate) fn configuration(text: String) -> Error {
    Error::new(ErrorKind::Configuration, text)
}

pub(crate) fn timeout(text: &str) -> Error {
    Error::new(ErrorKind::Timeout, format!("Postgres: {text}"))
}

/// Neither the message nor the detail of a server contains a key: the statements that could violate a constraint do not fail.
pub(crate) fn of_postgres(error: &tokio_postgres::Error) -> Error {
    let Some(server) = error.as_db_error() else {
        // The text of the source says why, such as "connection refused".
        let source = std::error::Error::source(error).map(ToString::to_string);
        let source = source.map_or_else(String::new, |source| format!(": {source}"));
        return Error::new(ErrorKind::Unavailable, format!("Postgres: {error}{source}"));
    };
    let (kind, advice) = match server.code() {
        code if *code == SqlState::UNDEFINED_TABLE => (
            ErrorKind::Configuration,
            " (create it with PostgresTable::create or limiter_postgres::SCHEMA)",
        ),
        code if *code == SqlState::QUERY_CANCELED => (ErrorKind::Timeout, ""),
        // Invalid credentials, an unknown database, a missing permission or column.
        code if ["28", "3D", "42"]
            .iter()
            .any(|class| code.code().starts_with(class)) =>
        {
            (ErrorKind::Configuration, "")
        }
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("Postgres: {}{advice}", server.message()))
}

/// Returns whether the server has rolled the transaction back because of other transactions, so nothing has changed.
pub(crate) fn lost_to_another(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ]
        .contains(code)
    })
}
