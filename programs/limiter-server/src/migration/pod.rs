//! The variables of Envoy's service that take effect: TLS always, and all that control planes set with `CONFIG_TYPE=GRPC_XDS_SOTW`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue};
use limiter_core::internal::percent_encode;
use pbjson_types::Struct;

use crate::xds::messages::Node;
use crate::xds::settings::{Settings, TlsFiles};

/// The variables that take effect with `CONFIG_TYPE=GRPC_XDS_SOTW`, or have none there either.
const WITH_XDS: &str = "GRPC_HOST GRPC_PORT HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED HOST LOG_FORMAT LOG_LEVEL PORT REDIS_AUTH
    REDIS_SENTINEL_AUTH REDIS_SOCKET_TYPE REDIS_TLS REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TYPE REDIS_URL
    RUNTIME_APPDIRECTORY RUNTIME_ROOT RUNTIME_SUBDIRECTORY USE_PROMETHEUS USE_STATSD";

/// Returns `true` if a variable needs no replacement when a control plane sends the rules.
pub(super) fn takes_effect_with_xds(variable: &str) -> bool {
    WITH_XDS.split_whitespace().any(|name| name == variable)
}

/// What the variables choose.
#[derive(Debug, Default)]
pub struct Pod {
    /// The options, each with its value.
    pub options: Vec<(&'static str, Option<String>)>,
    /// The control plane that sends the rules.
    pub xds: Option<Settings>,
    /// The address for metrics alone.
    pub metrics: Option<String>,
    /// The level of the log.
    pub level: Option<String>,
}

impl Pod {
    /// Reads the variables.
    ///
    /// # Errors
    /// The variable, what was expected, and what was found.
    pub fn read(variables: &BTreeMap<String, String>) -> Result<Self, String> {
        let variables = Variables(variables);
        let mut pod = Self::default();
        if variables.flag("GRPC_SERVER_USE_TLS")? {
            pod.set(
                "tls-cert",
                Some(variables.required("GRPC_SERVER_TLS_CERT")?),
            );
            pod.set("tls-key", Some(variables.required("GRPC_SERVER_TLS_KEY")?));
            pod.set("tls-client-ca", variables.get("GRPC_CLIENT_TLS_CACERT"));
            pod.set("tls-client-name", variables.get("GRPC_CLIENT_TLS_SAN"));
            // Envoy's service encrypts gRPC only.
            pod.options.push(("http-plain", None));
        }
        match variables.get("CONFIG_TYPE").unwrap_or("FILE") {
            "FILE" => return Ok(pod),
            "GRPC_XDS_SOTW" => {}
            other => {
                return Err(format!(
                    "CONFIG_TYPE: expected FILE or GRPC_XDS_SOTW, found {other:?}"
                ));
            }
        }
        pod.xds = Some(settings(variables)?);
        let address = |host, port, default| {
            let [host, port] = [(host, "0.0.0.0"), (port, default)]
                .map(|(name, default)| variables.get(name).unwrap_or(default));
            match host.contains(':') && !host.starts_with('[') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            }
        };
        pod.set("grpc", Some(&address("GRPC_HOST", "GRPC_PORT", "8081")));
        pod.set("http", Some(&address("HOST", "PORT", "8080")));
        pod.set("store", store(variables)?.as_deref());
        pod.set("store-tls-ca", variables.get("REDIS_TLS_CACERT"));
        pod.set("store-tls-cert", variables.get("REDIS_TLS_CLIENT_CERT"));
        pod.set("store-tls-key", variables.get("REDIS_TLS_CLIENT_KEY"));
        if variables.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")? {
            pod.set("unhealthy-when", Some("no-rules"));
        }
        if variables
            .get("LOG_FORMAT")
            .is_some_and(|it| it.eq_ignore_ascii_case("json"))
        {
            pod.set("log-format", Some("json"));
        }
        pod.level = variables.get("LOG_LEVEL").map(level).transpose()?;
        if variables.flag("USE_PROMETHEUS")? {
            let address = variables.get("PROMETHEUS_ADDR").unwrap_or(":9090");
            let host = if address.starts_with(':') {
                "0.0.0.0"
            } else {
                ""
            };
            pod.metrics = Some(format!("{host}{address}"));
        }
        Ok(pod)
    }

    fn set(&mut self, option: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.options.push((option, Some(value.to_owned())));
        }
    }
}

#[derive(Clone, Copy)]
struct Variables<'a>(&'a BTreeMap<String, String>);

impl<'a> Variables<'a> {
    /// Returns a variable's value; `None` if it is empty.
    fn get(self, name: &str) -> Option<&'a str> {
        let value = self.0.get(name).map(|value| value.trim());
        value.filter(|value| !value.is_empty())
    }

    fn required(self, name: &str) -> Result<&'a str, String> {
        self.get(name)
            .ok_or_else(|| format!("{name}: expected a file"))
    }

    fn flag(self, name: &str) -> Result<bool, String> {
        match self.get(name).unwrap_or("false") {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
            other => Err(format!("{name}: expected true or false, found {other:?}")),
        }
    }

    /// Returns the pairs of a list with commas.
    fn pairs(self, name: &str, between: char) -> Result<Vec<(&'a str, &'a str)>, String> {
        // Values may be secrets.
        let pair = |pair: &'a str| {
            let parts = pair.split_once(between);
            parts.ok_or_else(|| format!("{name}: expected KEY{between}VALUE,…"))
        };
        let list = self.get(name).unwrap_or_default().split(',');
        list.filter(|pair| !pair.is_empty()).map(pair).collect()
    }
}

fn settings(variables: Variables<'_>) -> Result<Settings, String> {
    let name = "CONFIG_GRPC_XDS_SERVER_URL";
    let server = variables.get(name).unwrap_or("localhost:18000");
    let port = server.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(_))) {
        return Err(format!("{name}: expected HOST:PORT, found {server:?}"));
    }
    let metadata = variables.pairs("CONFIG_GRPC_XDS_NODE_METADATA", '=')?;
    let metadata = metadata.into_iter();
    let headers = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let header = |(key, value): (&str, &str)| {
        let header = HeaderName::try_from(key)
            .ok()
            .zip(HeaderValue::try_from(value).ok());
        header.ok_or_else(|| format!("{headers}: expected a header field, found {key:?}"))
    };
    let tls = variables.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")?.then(|| {
        let own = [
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        ];
        let client = match own.map(|name| variables.get(name)) {
            [Some(cert), Some(key)] => Some((PathBuf::from(cert), key.into())),
            [None, None] => None,
            [cert, _] => {
                let [missing, given] = if cert.is_none() {
                    own
                } else {
                    [own[1], own[0]]
                };
                return Err(format!(
                    "{missing}: expected a file, because {given} is set"
                ));
            }
        };
        Ok(TlsFiles {
            ca: variables
                .required("CONFIG_GRPC_XDS_SERVER_TLS_CACERT")?
                .into(),
            client,
            name: variables
                .get("CONFIG_GRPC_XDS_SERVER_TLS_SAN")
                .map(str::to_owned),
        })
    });
    Ok(Settings {
        server: server.to_owned(),
        node: Node {
            id: variables
                .get("CONFIG_GRPC_XDS_NODE_ID")
                .unwrap_or("default")
                .to_owned(),
            metadata: Some(Struct {
                fields: metadata
                    .map(|(key, value)| (key.to_owned(), value.to_owned().into()))
                    .collect(),
            }),
        },
        headers: variables
            .pairs(headers, ':')?
            .into_iter()
            .map(header)
            .collect::<Result<_, _>>()?,
        tls: tls.transpose()?,
        starts_without_rules: variables.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")?,
    })
}

/// Returns the option `--store` for the variables of Redis.
fn store(variables: Variables<'_>) -> Result<Option<String>, String> {
    if variables.flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")? {
        let text = "it is not supported: use a certificate that contains the host name";
        return Err(format!("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: {text}"));
    }
    let Some(url) = variables.get("REDIS_URL") else {
        return Ok(None);
    };
    let tls = if variables.flag("REDIS_TLS")? {
        "s"
    } else {
        ""
    };
    let encoded = |text: &str| percent_encode(text.as_bytes(), |byte| byte.is_ascii_alphanumeric());
    let (user, password) = match variables
        .get("REDIS_AUTH")
        .map(|auth| auth.split_once(':').unwrap_or(("", auth)))
    {
        Some((user, password)) => (encoded(user), encoded(password)),
        None => <(String, String)>::default(),
    };
    let auth = match password.is_empty() {
        true => String::new(),
        false => format!("{user}:{password}@"),
    };
    let kind = variables
        .get("REDIS_TYPE")
        .unwrap_or("single")
        .to_lowercase();
    Ok(Some(match &*kind {
        "single" if url.contains("://") => {
            let (scheme, rest) = url.split_once("://").unwrap_or_default();
            let (scheme, auth) = match scheme {
                "redis" if !rest.contains('@') => (format!("redis{tls}"), &*auth),
                "redis" => (format!("redis{tls}"), ""),
                _ => (scheme.to_owned(), ""),
            };
            format!("{scheme}://{auth}{rest}")
        }
        "single" if variables.get("REDIS_SOCKET_TYPE") == Some("tcp") => {
            format!("redis{tls}://{auth}{url}")
        }
        "single" if password.is_empty() => format!("redis+unix://{url}"),
        "single" => format!("redis+unix://{url}?user={user}&pass={password}"),
        "cluster" => format!("redis{tls}+cluster://{auth}{url}"),
        "sentinel" => {
            let Some((master, hosts)) = url.split_once(',') else {
                return Err(
                    "REDIS_URL: expected the master's name and the sentinels: NAME,HOST:PORT,…"
                        .to_owned(),
                );
            };
            let password = variables.get("REDIS_SENTINEL_AUTH").map(encoded);
            let password =
                password.map_or_else(String::new, |password| format!("?sentinel_pass={password}"));
            format!("redis{tls}+sentinel://{auth}{hosts}/{master}{password}")
        }
        _ => {
            return Err(format!(
                "REDIS_TYPE: expected SINGLE, CLUSTER or SENTINEL, found {kind:?}"
            ));
        }
    }))
}

/// Returns the level of the log that Envoy's service calls so.
fn level(name: &str) -> Result<String, String> {
    match &*name.to_lowercase() {
        level @ ("trace" | "debug" | "info" | "error") => Ok(level.to_owned()),
        "warn" | "warning" => Ok("warn".to_owned()),
        "fatal" | "panic" => Ok("error".to_owned()),
        _ => Err(format!(
            "LOG_LEVEL: expected trace, debug, info, warn, error, fatal or panic, found {name:?}"
        )),
    }
}
