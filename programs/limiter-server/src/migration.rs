//! The variables of Envoy's service: those that take effect, and the options that replace the others.

mod pod;

pub use self::pod::Pod;

/// Variables, and what to use instead. A name that ends in `*` stands for all that begin like it.
pub const REPLACED: &[(&str, &str)] = &[
    ("RUNTIME_ROOT", "--config"),
    ("RUNTIME_SUBDIRECTORY", "--config"),
    ("RUNTIME_APPDIRECTORY", "--config"),
    ("REDIS_URL", "--store"),
    ("REDIS_TYPE", "--store"),
    ("REDIS_SOCKET_TYPE", "--store"),
    ("REDIS_AUTH", "--store"),
    ("REDIS_TLS", "--store with rediss://"),
    ("REDIS_TLS_CACERT", "--store-tls-ca"),
    ("REDIS_TLS_CLIENT_CERT", "--store-tls-cert"),
    ("REDIS_TLS_CLIENT_KEY", "--store-tls-key"),
    (
        "REDIS_SENTINEL_AUTH",
        "--store with ?sentinel_pass=… in its URL",
    ),
    ("REDIS_TIMEOUT", "--store-timeout"),
    (
        "REDIS_PERSECOND*",
        "nothing: one decision covers all windows",
    ),
    ("REDIS_POOL_SIZE", "nothing"),
    ("REDIS_PIPELINE*", "nothing"),
    ("CACHE_KEY_PREFIX", "--prefix"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "nothing"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "nothing: denials are cached"),
    (
        "RESPONSE_DYNAMIC_METADATA",
        "nothing: the metadata of rules is returned",
    ),
    ("GRPC_HOST", "--grpc"),
    ("GRPC_PORT", "--grpc"),
    ("GRPC_UDS", "--grpc unix:PATH"),
    ("HOST", "--http"),
    ("PORT", "--http"),
    ("DEBUG_HOST", "--admin"),
    ("DEBUG_PORT", "--admin"),
    ("GRPC_MAX_CONNECTION_AGE", "--max-connection-age"),
    (
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        "--max-connection-age-grace",
    ),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "--headers legacy"),
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "--unhealthy-when no-rules",
    ),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        "--unhealthy-when store-down",
    ),
    ("USE_PROMETHEUS", "/metrics"),
    ("USE_STATSD", "/metrics"),
    ("EXTRA_TAGS", "--metric-label"),
    ("LOG_LEVEL", "RUST_LOG"),
    ("LOG_FORMAT", "--log-format"),
    (
        "MERGE_DOMAIN_CONFIG",
        "one file per domain: duplicate domains are an error",
    ),
    (
        "XDS_CLIENT_BACKOFF*",
        "nothing: it connects again after 0.5 to 30 s",
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "nothing: it connects again after 0.5 to 30 s",
    ),
    (
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        "nothing: a response may have 64 MiB",
    ),
    ("TRACING_ENABLED", "/metrics: there is no tracing"),
    ("SHADOW_MODE", "shadow_mode of each rule"),
    ("QUOTA_MODE", "quota_mode of each rule"),
];

/// Settings with which Envoy's service counts elsewhere. Servers that ignored them would each count alone.
pub const REFUSED: &[(&str, &str, &str)] = &[(
    "BACKEND_TYPE",
    "memcache",
    "servers share counts in Redis or Postgres: set --store, and unset the variable",
)];

/// Returns an error if one of these variables is a setting that has no equivalent.
///
/// # Errors
/// Returns the variable and what to do.
pub fn check(variables: impl IntoIterator<Item = (String, String)>) -> Result<(), String> {
    for (name, value) in variables {
        let is_refused = |(known, refused, _): &&(&str, &str, &str)| {
            *known == name && refused.eq_ignore_ascii_case(&value)
        };
        if let Some((_, _, instead)) = REFUSED.iter().find(is_refused) {
            return Err(format!("{name}={value} is not supported: {instead}"));
        }
    }
    Ok(())
}

/// Returns a line for each of these variables of Envoy's service that has no effect. `with_xds` is `true` if a control plane sends
/// the rules.
pub fn replaced(variables: impl IntoIterator<Item = String>, with_xds: bool) -> Vec<String> {
    let known = |variable: String| {
        if with_xds && pod::takes_effect_with_xds(&variable) {
            return None;
        }
        let (_, instead) = REPLACED
            .iter()
            .find(|(name, _)| match name.strip_suffix('*') {
                Some(start) => variable.starts_with(start),
                None => variable == *name,
            })?;
        Some(match instead.strip_prefix("nothing") {
            Some(why) => format!("{variable} has no effect, and needs no replacement{why}"),
            None => format!("{variable} has no effect; instead use {instead}"),
        })
    };
    variables.into_iter().filter_map(known).collect()
}
