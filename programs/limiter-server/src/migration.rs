//! The variables of Envoy's service: those that take effect, and the options that replace the others.

mod pod;

use std::collections::BTreeMap;

pub use self::pod::Pod;

/// Variables, and what to use instead. A name that ends in `*` stands for all that begin like it.
const REPLACED: &str = "
    RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY => --config
    REDIS_URL REDIS_TYPE REDIS_SOCKET_TYPE REDIS_AUTH => --store
    REDIS_TLS => --store with rediss://
    REDIS_TLS_CACERT => --store-tls-ca
    REDIS_TLS_CLIENT_CERT => --store-tls-cert
    REDIS_TLS_CLIENT_KEY => --store-tls-key
    REDIS_SENTINEL_AUTH => --store with ?sentinel_pass=… in its URL
    REDIS_TIMEOUT => --store-timeout
    REDIS_PERSECOND* => nothing: one decision covers all windows
    REDIS_POOL_SIZE REDIS_PIPELINE* EXPIRATION_JITTER_MAX_SECONDS => nothing
    CACHE_KEY_PREFIX => --prefix
    LOCAL_CACHE_SIZE_IN_BYTES => nothing: denials are cached
    RESPONSE_DYNAMIC_METADATA => nothing: the metadata of rules is returned
    GRPC_HOST GRPC_PORT => --grpc
    GRPC_UDS => --grpc unix:PATH
    HOST PORT => --http
    DEBUG_HOST DEBUG_PORT => --admin
    GRPC_MAX_CONNECTION_AGE => --max-connection-age
    GRPC_MAX_CONNECTION_AGE_GRACE => --max-connection-age-grace
    LIMIT_RESPONSE_HEADERS_ENABLED => --headers legacy
    HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED => --unhealthy-when no-rules
    REDIS_HEALTH_CHECK_ACTIVE_CONNECTION => --unhealthy-when store-down
    USE_PROMETHEUS USE_STATSD => /metrics
    EXTRA_TAGS => labels in the scrape configuration
    LOG_LEVEL => RUST_LOG
    LOG_FORMAT => --log-format
    MERGE_DOMAIN_CONFIG => one file per domain: duplicate domains are an error
    XDS_CLIENT_BACKOFF* CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL => nothing: it connects again after 0.5 to 30 s
    XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES => nothing: a response may have 64 MiB
    TRACING_ENABLED => /metrics: there is no tracing
    SHADOW_MODE => shadow_mode of each rule
    QUOTA_MODE => quota_mode of each rule
";

/// Returns the variables that have no effect, each with what to use instead.
pub fn replacements() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = REPLACED
        .lines()
        .filter_map(|row| row.trim().split_once(" => "));
    rows.flat_map(|(names, instead)| names.split(' ').map(move |name| (name, instead)))
}

/// Refuses a setting with which Envoy's service counts elsewhere: servers that ignored it would each count alone.
///
/// # Errors
/// Returns the variable and what to do.
pub fn check(variables: &BTreeMap<String, String>) -> Result<(), String> {
    let name = "BACKEND_TYPE";
    let is_refused = |value: &&String| value.eq_ignore_ascii_case("memcache");
    let instead = "servers share counts in Redis or Postgres: set --store, and unset the variable";
    match variables.get(name).filter(is_refused) {
        Some(value) => Err(format!("{name}={value} is not supported: {instead}")),
        None => Ok(()),
    }
}

/// Returns a line for each of these variables of Envoy's service that has no effect. `with_xds` is `true` if a control plane sends
/// the rules.
pub fn replaced(variables: impl IntoIterator<Item = String>, with_xds: bool) -> Vec<String> {
    let known = |variable: String| {
        if with_xds && pod::takes_effect_with_xds(&variable) {
            return None;
        }
        let (_, instead) = replacements().find(|(name, _)| match name.strip_suffix('*') {
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
