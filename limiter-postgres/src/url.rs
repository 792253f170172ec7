//! The table by its URL.

mod parse;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use limiter_core::Error;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::connect::Connector;
use crate::connections::Connections;
use crate::failure::configuration;
use crate::table::PostgresTable;

/// The time from one sweep to the next.
const SWEEP: Duration = Duration::from_secs(60);

/// The URL of a Postgres database, for command lines and configurations.
///
/// `postgres://user:password@host:port/database?option=value` has the options of
/// [`Config`](tokio_postgres::Config#url), and these:
///
/// | option | default | |
/// |---|---|---|
/// | `sslmode=disable` | yes | without TLS |
/// | `sslmode=require`, `sslmode=verify-full` | | with TLS, by rustls (feature `tls`): the server's certificate must be for the host, and signed by an authority of the system or by one of [`certificates`](Self::certificates) |
/// | `pool=N` | 8 | the most connections, from 1 to 1,000; calls on one log are combined, so few suffice |
/// | `password_file=PATH` | | the password, read anew for each connection, so it may be rotated |
/// | `target_session_attrs` | `read-write` | a server that only reads is skipped; `any` accepts it |
/// | `connect_timeout=SECONDS` | 3 | the time for connecting to each address of each host, including the handshake |
/// | `application_name` | `limiter` | shown in `pg_stat_activity` |
///
/// Other modes of TLS are errors: `prefer` and `allow` would let the network decide, and `verify-ca` accepts a certificate for another
/// host.
///
/// Neither [`Display`](fmt::Display) nor [`Debug`] prints credentials, and no error does. Percent-encode `/`, `?`, `#`, `%` and `@` in
/// them.
///
/// # Examples
/// ```
/// use limiter_postgres::PostgresUrl;
///
/// let url: PostgresUrl = "postgres://app:secret@db/shop".parse()?;
/// assert_eq!(url.to_string(), "postgres://db:5432/shop");
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// One for each host.
    hosts: Vec<Config>,
    connections: usize,
    password: Option<PathBuf>,
    #[cfg(feature = "tls")]
    certificates: crate::tls::Certificates,
}

impl PostgresUrl {
    /// Sets the certificates for TLS, in PEM: the authorities that must have signed the server's certificate, and the client's own
    /// certificate chain and key. Default: the system's authorities, and no certificate of the client.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn certificates(
        mut self,
        authorities: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.certificates = crate::tls::Certificates {
            authorities,
            client,
        };
        self
    }

    /// Returns `true` if a text is meant as the URL of Postgres, even if it is malformed, as `POSTGRES://` and `jdbc:postgresql://` are.
    #[must_use]
    pub fn matches(text: &str) -> bool {
        let scheme = text.split("://").next().unwrap_or_default();
        scheme.to_ascii_lowercase().contains("postgres")
    }

    /// Returns the table. It opens connections when needed, so the server may be down.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the certificates are malformed, or if there are some without TLS.
    pub fn open(&self) -> Result<PostgresTable, Error> {
        self.table(false)
    }

    /// Returns the table, which is created if it is missing, and swept once a minute for as long as it is in use, by one process for all.
    ///
    /// Call this within a tokio runtime.
    ///
    /// # Errors
    /// As [`open`](Self::open), and outside a tokio runtime.
    pub fn open_maintained(&self) -> Result<PostgresTable, Error> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| configuration(format!("Postgres: {error}")))?;
        let table = self.table(true)?;
        runtime.spawn(table.maintain(SWEEP));
        Ok(table)
    }

    fn table(&self, creates: bool) -> Result<PostgresTable, Error> {
        let first = &self.hosts[0];
        let patience = first.get_connect_timeout().copied();
        let connector = Connector {
            hosts: self.hosts.clone(),
            last: Default::default(),
            patience: patience.unwrap_or(Duration::from_secs(3)),
            password: self.password.clone(),
            is_plain: Default::default(),
            #[cfg(not(feature = "tls"))]
            tls: tokio_postgres::NoTls,
            #[cfg(feature = "tls")]
            tls: self.certificates.connector(first)?,
        };
        let connections = Connections::new(connector, self.connections, creates);
        Ok(PostgresTable::new(connections))
    }
}

impl FromStr for PostgresUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        parse::parse(url)
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        for (i, config) in self.hosts.iter().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            match config.get_hosts().first() {
                Some(Host::Tcp(host)) if host.contains(':') => write!(f, "[{host}]")?,
                Some(Host::Tcp(host)) => f.write_str(host)?,
                #[cfg(unix)]
                Some(Host::Unix(folder)) => write!(f, "{}", folder.display())?,
                None => {}
            }
            if let Some(port) = config.get_ports().first() {
                write!(f, ":{port}")?;
            }
        }
        let database = self.hosts.first().and_then(Config::get_dbname);
        database.map_or(Ok(()), |database| write!(f, "/{database}"))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresUrl")
            .field(&self.to_string())
            .finish()
    }
}
