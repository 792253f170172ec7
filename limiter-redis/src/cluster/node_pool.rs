//! A connection to each node of a cluster.
//!
//! A silent node delays only the operations on its own slots. No operation waits for another node, and the map of slots is
//! refreshed in the background. The client library's cluster connection holds back every command while it reconnects to one
//! node.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use redis::cluster_routing::Slot;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};

use crate::cluster::redirect::{MAX_REDIRECTIONS, asking, last_reply, redirection};
use crate::cluster::slots::{slot_of, slot_ranges};
use crate::reconnecting::Reconnecting;
use crate::refresh::{Background, Refresh, first_answer, no_server, watched};
use crate::settings::{Address, Timeouts};

#[derive(Clone)]
pub(crate) struct NodePool(Arc<Inner>);

struct Inner {
    /// How to connect, whatever the address.
    info: ConnectionInfo,
    timeouts: Timeouts,
    seeds: Vec<Address>,
    known: RwLock<Known>,
    background: Background,
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
    host: Arc<str>,
    /// The host and the port.
    name: Arc<str>,
    pub(crate) connection: Reconnecting,
}

impl NodePool {
    /// Returns connections that are made when they are needed. Call this within a runtime.
    pub(crate) fn new(seeds: &[ConnectionInfo], timeouts: Timeouts) -> RedisResult<Self> {
        let no_seed =
            || RedisError::from((ErrorKind::InvalidClientConfig, "a cluster needs at least one node address"));
        let info = seeds.first().cloned().ok_or_else(no_seed)?;
        let seeds: Vec<Address> = seeds.iter().filter_map(|seed| address(seed.addr())).collect();
        let pool = Self(Arc::new(Inner {
            info,
            timeouts,
            seeds,
            known: RwLock::default(),
            background: Background::new(),
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
        let (host, port) = address.clone();
        let addr = match self.0.info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let client = redis::Client::open(self.0.info.clone().set_addr(addr))?;
        let connection = Reconnecting::lazy(client, self.0.timeouts)?;
        let (host, port) = address;
        let node = Node { host: host.as_str().into(), name: format!("{host}:{port}").into(), connection };
        Ok(self.change(|known| known.nodes.entry(address.clone()).or_insert(node).clone()))
    }

    /// Returns the nodes in turn, so that a retry asks another one.
    pub(crate) fn any(&self) -> RedisResult<Node> {
        let known = self.known();
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed) % known.nodes.len().max(1);
        known.nodes.values().nth(turn).cloned().ok_or_else(no_server)
    }

    /// Returns the name of the node that serves a key, if it is known, and a number for the key's slot, which is private.
    pub(crate) fn place_of(&self, key: &[u8]) -> (Option<Arc<str>>, Option<u64>) {
        let slot = Slot::for_key(key);
        (
            self.known().slots.get(&slot).map(|node| Arc::clone(&node.name)),
            Some(BuildHasherDefault::<DefaultHasher>::new().hash_one(slot)),
        )
    }

    fn of_slot(&self, slot: Option<Slot>) -> RedisResult<Node> {
        let node = slot.and_then(|slot| self.known().slots.get(&slot).cloned());
        node.map_or_else(|| self.any(), Ok)
    }

    /// Sends a command to the node that serves its slot, and follows redirections.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        watched(self, self.follow(cmd)).await
    }

    async fn follow(&self, cmd: &Cmd) -> RedisResult<Value> {
        let slot = slot_of(cmd);
        let mut node = self.of_slot(slot)?;
        let mut reply = node.connection.send(cmd).await;
        for _ in 0..MAX_REDIRECTIONS {
            let Err(error) = &reply else { break };
            let Some((address, ask)) = redirection(error, &node.host) else { break };
            node = self.at(&address)?;
            if ask {
                reply = node.connection.send_all(&asking(cmd)).await.and_then(last_reply);
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
            slots.extend((*first..=*last).filter_map(Slot::new).map(|slot| (slot, node.clone())));
        }
        let listed = |address: &Address| ranges.iter().any(|(.., listed)| listed == address);
        self.change(|known| {
            known.slots = slots;
            known.nodes.retain(|address, _| listed(address) || self.0.seeds.contains(address));
        });
        Ok(())
    }
}

impl Refresh for NodePool {
    fn background(&self) -> &Background {
        &self.0.background
    }

    /// Takes the map of slots from the node that responds first.
    async fn refresh_now(&self) -> RedisResult<()> {
        let nodes: Vec<Node> = self.known().nodes.values().cloned().collect();
        let asked = nodes.into_iter().map(|node| async move {
            let mut cmd = redis::cmd("CLUSTER");
            let reply = node.connection.send(cmd.arg("SLOTS")).await?;
            let malformed = || RedisError::from((ErrorKind::Parse, "CLUSTER SLOTS: unexpected reply"));
            slot_ranges(&reply, &node.host).ok_or_else(malformed)
        });
        self.set(&first_answer(self.0.timeouts.refresh(), asked).await?)
    }
}

fn address(addr: &ConnectionAddr) -> Option<Address> {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some((host.clone(), *port)),
        _ => None,
    }
}
