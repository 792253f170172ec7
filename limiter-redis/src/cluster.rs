//! Redis Cluster: a connection to each node.
//!
//! A silent node delays only the operations on its own slots. No operation waits for another node, and the map of slots is
//! refreshed in the background. The client library's cluster connection holds back every command while it reconnects to one
//! node.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use redis::cluster_routing::Slot;
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::sync::Mutex;
use tokio::time::sleep;

use self::slots::{slot_of, slot_ranges};
use crate::eviction::Eviction;
use crate::failure::is_deposed;
use crate::first_response::{first_response, no_server};
use crate::reconnecting::Reconnecting;
use crate::settings::{Address, Runtime, Timeouts, moved_to};

mod slots;

/// A command for a slot that moves reaches its node after one redirection, or two.
const MAX_REDIRECTIONS: usize = 3;
/// The least time between two refreshes.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct NodePool(Arc<Inner>);

struct Inner {
    /// How to connect to any address.
    info: ConnectionInfo,
    timeouts: Timeouts,
    seeds: Vec<Address>,
    known: RwLock<Known>,
    runtime: Runtime,
    /// Held during a refresh.
    refreshing: Arc<Mutex<()>>,
    /// Counts the calls of `any`.
    turn: AtomicUsize,
}

#[derive(Clone, Default)]
struct Known {
    nodes: HashMap<Address, Node>,
    slots: HashMap<Slot, Node>,
}

/// One node.
#[derive(Clone)]
pub(crate) struct Node {
    address: Arc<Address>,
    /// The host and the port.
    name: Arc<str>,
    pub(crate) connection: Reconnecting,
}

impl NodePool {
    /// Returns connections that are made when they are needed.
    pub(crate) fn new(
        seeds: &[ConnectionInfo],
        timeouts: Timeouts,
        runtime: Runtime,
    ) -> RedisResult<Self> {
        let info = seeds.first().cloned().ok_or_else(no_server)?;
        let seeds: Vec<Address> = seeds
            .iter()
            .filter_map(|seed| address(seed.addr()))
            .collect();
        let pool = Self(Arc::new(Inner {
            info,
            timeouts,
            seeds,
            known: RwLock::default(),
            runtime,
            refreshing: Arc::default(),
            turn: AtomicUsize::new(0),
        }));
        for seed in &pool.0.seeds {
            pool.at(seed)?;
        }
        Ok(pool)
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.0.known.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the node at an address.
    pub(crate) fn at(&self, address: &Address) -> RedisResult<Node> {
        if let Some(node) = self.known().nodes.get(address) {
            return Ok(node.clone());
        }
        let client = redis::Client::open(moved_to(&self.0.info, address.clone()))?;
        let runtime = self.0.runtime.clone();
        let name: Arc<str> = format!("{}:{}", address.0, address.1).into();
        let eviction = Some(Eviction::of(name.to_string()));
        let connection = Reconnecting::lazy(client, eviction, self.0.timeouts, runtime);
        let node = Node {
            address: Arc::new(address.clone()),
            name,
            connection,
        };
        Ok(self.change(|known| known.nodes.entry(address.clone()).or_insert(node).clone()))
    }

    /// Returns the nodes whose `maxmemory-policy` is known to delete logs, in order.
    pub(crate) fn evicting(&self) -> Vec<(String, Arc<str>)> {
        let known = self.known();
        let nodes = known.nodes.values();
        let mut evicting: Vec<_> = nodes
            .filter_map(|node| node.connection.evicting())
            .collect();
        evicting.sort_unstable();
        evicting
    }

    /// Asks for the addresses of the masters.
    pub(crate) async fn masters(&self) -> RedisResult<Vec<Address>> {
        self.refresh_now().await?;
        let known = self.known();
        let masters: BTreeSet<&Address> = known.slots.values().map(|node| &*node.address).collect();
        Ok(masters.into_iter().cloned().collect())
    }

    /// Returns the nodes in turn, so that a retry asks another one.
    fn any(&self) -> RedisResult<Node> {
        let known = self.known();
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed) % known.nodes.len().max(1);
        known
            .nodes
            .values()
            .nth(turn)
            .cloned()
            .ok_or_else(no_server)
    }

    /// Returns the name of the node that serves a key, if it is known, and a number for the key's slot, which is private.
    pub(crate) fn place_of(&self, key: &[u8]) -> (Option<Arc<str>>, Option<u64>) {
        let slot = Slot::for_key(key);
        (
            self.known()
                .slots
                .get(&slot)
                .map(|node| Arc::clone(&node.name)),
            Some(BuildHasherDefault::<DefaultHasher>::new().hash_one(slot)),
        )
    }

    fn of_slot(&self, slot: Option<Slot>) -> RedisResult<Node> {
        let node = slot.and_then(|slot| self.known().slots.get(&slot).cloned());
        node.map_or_else(|| self.any(), Ok)
    }

    /// Sends a command to the node that serves its slot, and follows redirections. Refreshes if the node does not respond, even if the
    /// future is dropped: another one may have taken over.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut refresh = RefreshOnDrop {
            pool: self,
            armed: true,
        };
        let reply = self.follow(cmd).await;
        refresh.armed = reply.as_ref().is_err_and(|error| {
            let is_unknown = error.kind() == ErrorKind::ClusterConnectionNotFound;
            error.is_io_error() || is_deposed(error) || is_unknown
        });
        reply
    }

    async fn follow(&self, cmd: &Cmd) -> RedisResult<Value> {
        let slot = slot_of(cmd);
        let mut node = self.of_slot(slot)?;
        let mut reply = node.connection.send(cmd).await;
        for _ in 0..MAX_REDIRECTIONS {
            let Err(error) = &reply else { break };
            let Some((address, ask)) = redirection(error, &node.address.0) else {
                break;
            };
            node = self.at(&address)?;
            if ask {
                let mut asking = Pipeline::with_capacity(2);
                asking.cmd("ASKING").add_command(cmd.clone());
                let replies = node.connection.send_all(&asking).await;
                reply = replies
                    .and_then(|mut replies| replies.pop().unwrap_or(Value::Nil).extract_error());
            } else {
                if let Some(slot) = slot {
                    self.change(|known| known.slots.insert(slot, node.clone()));
                }
                self.refresh();
                reply = node.connection.send(cmd).await;
            }
        }
        reply
    }

    fn set(&self, ranges: &[(u16, u16, Address)]) -> RedisResult<()> {
        let mut slots = HashMap::with_capacity(16_384);
        for (first, last, address) in ranges {
            let node = self.at(address)?;
            slots.extend(
                (*first..=*last)
                    .filter_map(Slot::new)
                    .map(|slot| (slot, node.clone())),
            );
        }
        let listed = |address: &Address| ranges.iter().any(|(.., listed)| listed == address);
        self.change(|known| {
            known.slots = slots;
            known
                .nodes
                .retain(|address, _| listed(address) || self.0.seeds.contains(address));
        });
        Ok(())
    }

    /// Refreshes in the background.
    fn refresh(&self) {
        let Ok(refreshing) = Arc::clone(&self.0.refreshing).try_lock_owned() else {
            return;
        };
        let pool = self.clone();
        self.0.runtime.spawn(async move {
            // If no node responds, the next operation tries again.
            let _ = pool.refresh_now().await;
            sleep(REFRESH_PAUSE).await;
            drop(refreshing);
        });
    }

    /// Takes the map of slots from the node that responds first.
    pub(crate) async fn refresh_now(&self) -> RedisResult<()> {
        let nodes: Vec<Node> = self.known().nodes.values().cloned().collect();
        let asked = nodes.into_iter().map(|node| async move {
            let mut cmd = redis::cmd("CLUSTER");
            let reply = node.connection.send(cmd.arg("SLOTS")).await?;
            let malformed =
                || RedisError::from((ErrorKind::Parse, "CLUSTER SLOTS: unexpected reply"));
            slot_ranges(&reply, &node.address.0).ok_or_else(malformed)
        });
        self.set(&first_response(self.0.timeouts.refresh(), asked).await?)
    }
}

struct RefreshOnDrop<'a> {
    pool: &'a NodePool,
    armed: bool,
}

impl Drop for RefreshOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.pool.refresh();
        }
    }
}

/// Returns where a redirection points, and whether the command must follow an `ASKING` there. With
/// `cluster-preferred-endpoint-type unknown-endpoint` a redirection contains only a port, on the host that was `asked`.
fn redirection(error: &RedisError, asked: &str) -> Option<(Address, bool)> {
    let ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some(((host.to_owned(), port.parse().ok()?), ask))
}

fn address(addr: &ConnectionAddr) -> Option<Address> {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}
