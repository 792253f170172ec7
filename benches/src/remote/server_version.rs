//! The name and version of the measured server.

/// Returns `Redis 7.0.15` or `Valkey 8.1.4`, for example, from `INFO server`.
pub(super) fn describe(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns whether the server is compatible with this version of Redis. Valkey states the version that it is based
/// on.
pub(super) fn at_least(info: &str, wanted: (u32, u32)) -> bool {
    let mut parts = field(info, "redis_version").unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= wanted
}
