//! Lists the logs with a prefix, for operators.

use limiter_core::store::LiveKey;
use limiter_core::{Error, Name};

use crate::channel::Channel;
use crate::failure::Failure;
use crate::reply;
use crate::settings::Address;
use crate::store::RedisStore;

/// Marks where a scan continues.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The nodes of a cluster that are left, the current one last. One server is a node without an address.
    nodes: Vec<Option<Address>>,
    position: u64,
}

/// Holds one page of a scan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The logs, in no order. One may appear twice if Redis resizes its table during the scan, or if a slot moves.
    pub keys: Vec<LiveKey>,
    /// Where to continue, `None` at the end.
    pub next: Option<Cursor>,
}

impl RedisStore {
    /// Returns a page of the logs with the store's prefix: of all limiters, or of the one called `name`.
    ///
    /// Start with `None` and continue from [`Page::next`] until it is `None`. Redis looks at about `count` keys of the *database*
    /// for each page, regardless of the name, so a page may be empty. A scan finds every log that exists from its beginning to its end.
    ///
    /// It uses `SCAN`, which does not block the server.
    ///
    /// # Errors
    /// The errors of every operation except `Corrupt`: see [`RedisStore`].
    ///
    /// # Cancel safety
    /// It only reads, so it can be dropped at any time.
    ///
    /// # Examples
    /// ```
    /// # async fn example(store: limiter_redis::RedisStore) -> Result<(), limiter_core::Error> {
    /// let mut cursor = None;
    /// loop {
    ///     let page = store.scan(None, cursor, 1_000).await?;
    ///     for log in page.keys {
    ///         println!("{} {}", log.name, log.key);
    ///     }
    ///     cursor = page.next;
    ///     if cursor.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn scan(
        &self,
        name: Option<Name>,
        from: Option<Cursor>,
        count: usize,
    ) -> Result<Page, Error> {
        let Channel {
            connection,
            retry_policy,
            ..
        } = &self.channel;
        let failed = |failure: Failure| failure.into_error(&[]);
        let mut cursor = match from {
            Some(cursor) => cursor,
            None => Cursor {
                nodes: connection
                    .nodes()
                    .await
                    .map_err(Failure::Redis)
                    .map_err(failed)?,
                position: 0,
            },
        };
        let Some(node) = cursor.nodes.last().cloned() else {
            return Ok(Page {
                keys: Vec::new(),
                next: None,
            });
        };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.position)
            .arg("MATCH")
            .arg(self.keys.pattern(name))
            .arg("COUNT")
            .arg(count.max(1));
        let node = connection
            .node(node.as_ref())
            .map_err(Failure::Redis)
            .map_err(failed)?;
        let reply = retry_policy
            .run(&node, None, true, |_| scan.clone())
            .await
            .map_err(failed)?;
        let (position, stored): (u64, Vec<Vec<u8>>) = reply::value(&reply.value)?;
        // The pattern also matches other names that end like this one.
        let is_wanted = |found: &str| name.is_none_or(|name| name.as_str() == found);
        let found = stored.iter().filter_map(|stored| self.keys.decode(stored));
        let keys = found
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, key)| LiveKey { name, key })
            .collect();
        cursor.position = position;
        if position == 0 {
            cursor.nodes.pop();
        }
        Ok(Page {
            keys,
            next: (!cursor.nodes.is_empty()).then_some(cursor),
        })
    }
}
