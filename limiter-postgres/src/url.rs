//! The table by its URL.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, Pool, Runtime};
use limiter_core::Error;
use tokio_postgres::Config;
use tokio_postgres::NoTls;
use tokio_postgres::config::{Host, SslMode};

use crate::failure::configuration;
use crate::table::{CREATE, PostgresTable};

/// The most connections that a table opens by itself. Calls on one log are combined, so few suffice.
const CONNECTIONS: usize = 8;
/// The time from one sweep to the next.
const SWEEP: Duration = Duration::from_secs(60);
const EXPECTED: &str = "expected postgres:// or postgresql:// with a host or a socket's folder";

/// The URL of a Postgres database, for command lines and configurations.
///
/// `postgres://user:password@host:port/database?option=value` has the options of
/// [`Config`](tokio_postgres::Config#url), except `sslmode`:
///
/// | `sslmode` | connection |
/// |---|---|
/// | `disable` (default) | without TLS |
/// | `require`, `verify-full` | with TLS, by rustls (feature `tls`): the server's certificate must be for the host, and signed by an authority of the system or by one of [`certificates`](Self::certificates) |
///
/// Others are errors: `prefer` and `allow` would let the network decide, and `verify-ca` accepts a certificate for another host.
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
    config: Box<Config>,
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

    /// Returns the table. It opens up to 8 connections when needed, so the server may be down.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the certificates are malformed, or if there are some without TLS.
    pub fn open(&self) -> Result<PostgresTable, Error> {
        self.with_hook(None)
    }

    /// Returns the table, which is created if it is missing, and swept once a minute for as long as it is in use.
    ///
    /// The first request on each connection creates it. Call this within a tokio runtime.
    ///
    /// # Errors
    /// As [`open`](Self::open), and outside a tokio runtime.
    pub fn open_maintained(&self) -> Result<PostgresTable, Error> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| configuration(format!("Postgres: {error}")))?;
        let create = Hook::async_fn(|client, _| {
            Box::pin(async {
                client
                    .batch_execute(&CREATE)
                    .await
                    .map_err(HookError::Backend)
            })
        });
        let table = self.with_hook(Some(create))?;
        let unused = table.downgrade();
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(table) = unused() else { return };
                // A failure shows in the calls, too.
                let _ = table.sweep().await;
            }
        });
        Ok(table)
    }

    fn with_hook(&self, created: Option<Hook>) -> Result<PostgresTable, Error> {
        #[cfg(feature = "tls")]
        let tls = self.certificates.connector(&self.config)?;
        #[cfg(not(feature = "tls"))]
        let tls: Option<NoTls> = None;
        let manager = match tls {
            Some(tls) => Manager::new((*self.config).clone(), tls),
            None => Manager::new((*self.config).clone(), NoTls),
        };
        let mut pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1);
        if let Some(created) = created {
            pool = pool.post_create(created);
        }
        let pool = pool.build();
        pool.map(PostgresTable::new)
            .map_err(|error| configuration(format!("Postgres: {error}")))
    }
}

impl FromStr for PostgresUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !["postgres", "postgresql"].contains(&scheme) {
            return Err(configuration(EXPECTED.to_owned()));
        }
        let after_hosts = rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]);
        if after_hosts.contains(['@', '#']) {
            let text = "percent-encode the user and the password: `/` as %2F, `?` as %3F, `#` as %23, `@` as %40";
            return Err(configuration(format!("{scheme}://…: {text}")));
        }
        let (address, options) = url.split_once('?').unwrap_or((url, ""));
        let options = options.split('&').filter(|option| !option.is_empty());
        let (modes, others): (Vec<_>, Vec<_>) =
            options.partition(|option| option.starts_with("sslmode="));
        let is_tls = match modes[..] {
            [] | ["sslmode=disable"] => false,
            ["sslmode=require" | "sslmode=verify-full"] => true,
            _ => {
                let text = "expected one sslmode: disable, require or verify-full";
                return Err(configuration(format!("{scheme}://…: {text}")));
            }
        };
        if is_tls && cfg!(not(feature = "tls")) {
            let text = "sslmode needs the feature `postgres-tls` of the crate `exact-limiter`";
            return Err(configuration(format!("{scheme}://…: {text}")));
        }
        let parsed = format!("{address}?{}", others.join("&")).parse::<Config>();
        let mut config = parsed.map_err(|error| {
            // Other reasons quote the URL.
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            let reason = reason.filter(|reason| reason.starts_with("invalid value"));
            let reason = reason.unwrap_or_else(|| "malformed, or an unknown option".to_owned());
            configuration(format!("{EXPECTED}: {reason}"))
        })?;
        if config.get_hosts().is_empty() {
            return Err(configuration(EXPECTED.to_owned()));
        }
        config.ssl_mode(if is_tls {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        Ok(Self {
            config: Box::new(config),
            #[cfg(feature = "tls")]
            certificates: crate::tls::Certificates::default(),
        })
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        let ports = self.config.get_ports();
        for (i, host) in self.config.get_hosts().iter().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            match host {
                Host::Tcp(host) if host.contains(':') => write!(f, "[{host}]")?,
                Host::Tcp(host) => f.write_str(host)?,
                #[cfg(unix)]
                Host::Unix(folder) => write!(f, "{}", folder.display())?,
            }
            // One port is that of all hosts.
            if let Some(port) = ports.get(i).or_else(|| ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        let database = self.config.get_dbname();
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
