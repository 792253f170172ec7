//! The variables of Envoy's service, and the options that replace them.

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
    ("GRPC_SERVER_TLS_CERT", "--tls-cert with --http-plain"),
    ("GRPC_SERVER_TLS_KEY", "--tls-key"),
    ("GRPC_CLIENT_TLS_CACERT", "--tls-client-ca"),
    ("GRPC_CLIENT_TLS_SAN", "--tls-client-name"),
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
    ("TRACING_ENABLED", "/metrics: there is no tracing"),
    ("SHADOW_MODE", "shadow_mode of each rule"),
    ("QUOTA_MODE", "quota_mode of each rule"),
];

/// Settings with which Envoy's service counts elsewhere, or has its rules from elsewhere. Servers that ignored them would each
/// count alone, or without rules.
pub const REFUSED: &[(&str, &str, &str)] = &[
    (
        "BACKEND_TYPE",
        "memcache",
        "servers share counts in Redis or Postgres: set --store, and unset the variable",
    ),
    (
        "CONFIG_TYPE",
        "GRPC_XDS_SOTW",
        "rules are files: set --config, and unset the variable",
    ),
];

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

/// Returns a line for each of these variables of Envoy's service, which are not read here.
pub fn replaced(variables: impl IntoIterator<Item = String>) -> Vec<String> {
    let known = |variable: String| {
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
