//! The errors of Postgres, in the kinds of the contract.

use std::error::Error as _;
use std::io;

use limiter_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

pub(crate) fn configuration(text: String) -> Error {
    Error::new(ErrorKind::Configuration, text)
}

pub(crate) fn timed_out(text: &str) -> Error {
    Error::new(ErrorKind::Timeout, format!("Postgres: {text}"))
}

/// A request that failed.
pub(crate) enum Failed {
    Postgres(tokio_postgres::Error),
    /// The server cannot be reached, or is not the wanted one.
    Refused(String),
    /// The server did not respond.
    Silent(&'static str),
}

/// What becomes of a connection after a request, and of the request.
pub(crate) enum Fate {
    /// The connection serves the next request.
    Keep,
    Drop,
    /// The others are probably lost as well and do not know it yet, or are read-only.
    DropAll,
    /// As `DropAll`, and the request is made again.
    Again,
}

impl Failed {
    fn has_code(&self, is_wanted: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Postgres(error) => error.code().is_some_and(|code| is_wanted(code.code())),
            Self::Refused(_) | Self::Silent(_) => false,
        }
    }

    /// Returns `true` if the server, or a `PgBouncer` before it, has ended the session.
    fn ends_session(&self) -> bool {
        self.has_code(|code| {
            ["08", "25P03", "57P"]
                .iter()
                .any(|end| code.starts_with(end))
        })
    }

    /// Returns what becomes of the connection whose request failed like this, and which may be closed.
    ///
    /// `may_repeat`: the request only reads. `creates`: the next connection creates the table if it is missing. `is_early`: nobody has
    /// cancelled the request because of its timeout.
    pub(crate) fn fate(
        &self,
        is_closed: bool,
        may_repeat: bool,
        creates: bool,
        is_early: bool,
    ) -> Fate {
        let is_lost = is_closed || self.ends_session();
        // A cancellation that another request sent too late, or an operator.
        let is_foreign = is_early && self.has_code(|code| code == SqlState::QUERY_CANCELED.code());
        if self.is_stale() || creates && self.is_missing_table() || is_foreign {
            // The next connection creates the table, and prepares statements for its present columns.
            Fate::Again
        } else if is_lost {
            if may_repeat {
                Fate::Again
            } else {
                Fate::DropAll
            }
        } else if self.has_code(|code| code == SqlState::READ_ONLY_SQL_TRANSACTION.code()) {
            Fate::DropAll
        } else if self.has_code(|code| code != SqlState::IN_FAILED_SQL_TRANSACTION.code()) {
            Fate::Keep
        } else {
            Fate::Drop
        }
    }

    /// Returns `true` if a `PgBouncer` that pools by transaction has lost the statements, or has those of another connection.
    pub(crate) fn loses_statements(&self) -> bool {
        let is_confused = match self {
            Self::Postgres(error) => error.as_db_error().is_some_and(|server| {
                server.code() == &SqlState::PROTOCOL_VIOLATION
                    && server.message().contains("prepared statement")
            }),
            Self::Refused(_) | Self::Silent(_) => false,
        };
        is_confused || self.has_code(|code| ["26000", "42P05"].contains(&code))
    }

    /// Returns `true` if the statements are lost, or a column has changed its type since they were prepared.
    fn is_stale(&self) -> bool {
        let has_changed = self.has_code(|code| code == SqlState::FEATURE_NOT_SUPPORTED.code());
        has_changed || self.loses_statements()
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Postgres(error) => cause(error),
            Self::Refused(text) => text.clone(),
            Self::Silent(text) => (*text).to_owned(),
        }
    }

    /// Returns `true` if a proxy refuses the options of a connection: `PgBouncer` and Neon by the parameter's name, with the code of an
    /// outage, RDS Proxy all of them.
    pub(crate) fn is_refused_option(&self) -> bool {
        matches!(self, Self::Postgres(error) if is_refused_option(error))
    }

    /// Returns `true` if the server or the role has no more connections.
    pub(crate) fn is_full(&self) -> bool {
        self.has_code(|code| code == SqlState::TOO_MANY_CONNECTIONS.code())
    }

    fn is_missing_table(&self) -> bool {
        self.has_code(|code| code == SqlState::UNDEFINED_TABLE.code())
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Postgres(error) => of_postgres(&error),
            Failed::Refused(text) => Self::new(ErrorKind::Unavailable, format!("Postgres: {text}")),
            Failed::Silent(text) => timed_out(text),
        }
    }
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Refused(format!("error connecting to server: {error}"))
    }
}

/// Neither the message nor the detail of a server contains a key: the statements that could violate a constraint do not fail.
fn of_postgres(error: &tokio_postgres::Error) -> Error {
    let Some(server) = error.as_db_error() else {
        let text = cause(error);
        let (kind, advice) = match &text[..] {
            text if text.contains("CaUsedAsEndEntity") => (
                ErrorKind::Configuration,
                " (the server shows a certificate that is itself an authority, such as a self-signed one: create an authority, and sign a certificate for the server with it)",
            ),
            text if [
                "invalid peer certificate",
                "does not support TLS",
                "invalid configuration",
                "cannot convert between",
            ]
            .iter()
            .any(|mistake| text.contains(mistake)) =>
            {
                (ErrorKind::Configuration, "")
            }
            _ => (ErrorKind::Unavailable, ""),
        };
        return Error::new(kind, format!("Postgres: {text}{advice}"));
    };
    let (kind, advice) = match server.code().code() {
        "42P01" => (
            ErrorKind::Configuration,
            " (create it with PostgresTable::create or limiter_postgres::SCHEMA)",
        ),
        // Since Postgres 15, only the owner of a database may create tables in `public`.
        "42501" => (
            ErrorKind::Configuration,
            " (let an owner run limiter_postgres::SCHEMA, and grant SELECT, INSERT, UPDATE and DELETE)",
        ),
        // A timeout of the server, or a cancellation.
        "55P03" | "57014" => (ErrorKind::Timeout, ""),
        _ if is_refused_option(error) => (
            ErrorKind::Configuration,
            " (leave `options` out of the URL, and set it with ALTER ROLE)",
        ),
        // Invalid credentials, an unknown database or schema, a missing permission, and columns that are not those of `SCHEMA`.
        code if ["0A", "23", "28", "3D", "3F", "42"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            (ErrorKind::Configuration, "")
        }
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("Postgres: {}{advice}", server.message()))
}

/// Returns the texts of an error and its sources. The last says why, such as "connection refused".
pub(crate) fn cause(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Returns `true` if the server has rolled the transaction back because of other transactions, so nothing has changed.
pub(crate) fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ]
        .contains(code)
    })
}

fn is_refused_option(error: &tokio_postgres::Error) -> bool {
    let texts = ["startup parameter", "command-line options"];
    let server = error.as_db_error();
    server.is_some_and(|server| texts.iter().any(|text| server.message().contains(text)))
}
