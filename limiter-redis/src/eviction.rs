//! Whether a server deletes logs when its memory runs short, which would admit their requests again.

use std::sync::{Arc, Mutex, PoisonError};

use redis::Value;
use redis::aio::MultiplexedConnection;

/// A server's `maxmemory-policy`, as the last connection read it.
pub(crate) struct Eviction {
    server: String,
    policy: Mutex<Option<Arc<str>>>,
}

impl Eviction {
    /// Returns a policy that is not known yet. `server` is for the log.
    pub(crate) fn of(server: String) -> Self {
        let policy = Mutex::default();
        Self { server, policy }
    }

    /// Returns the server and its policy if that may delete logs. All logs have a time to live, so `volatile-*` policies also do.
    pub(crate) fn evicting(&self) -> Option<(String, Arc<str>)> {
        let policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let policy = policy.clone().filter(|policy| &**policy != "noeviction")?;
        Some((self.server.clone(), policy))
    }

    /// Reads the policy, and warns if it has become one that deletes logs. A user without the permission learns nothing.
    pub(crate) async fn read(&self, mut connection: MultiplexedConnection) {
        let mut info = redis::cmd("INFO");
        let reply = connection.send_packed_command(info.arg("memory")).await;
        let Some(found) = reply.ok().and_then(policy_in) else {
            return;
        };
        let mut known = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = known.as_deref() != Some(&*found);
        *known = Some(found);
        drop(known);
        if let Some((server, policy)) = self.evicting().filter(|_| is_new) {
            tracing::warn!(
                server,
                %policy,
                "Redis deletes logs when its memory runs short, which admits their requests again: set maxmemory-policy noeviction"
            );
        }
    }
}

fn policy_in(reply: Value) -> Option<Arc<str>> {
    let info: String = redis::from_redis_value(reply).ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("maxmemory_policy:"));
    Some(line?.trim().into())
}
