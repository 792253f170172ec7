//! The faults of a Redis Cluster.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use crate::server::{Cluster, Server, until};

/// The slot that no node serves while the cluster is down.
const LAST_SLOT: &str = "16383";

/// A fault of a Redis Cluster. Its nodes announce their addresses, so there is no proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// No node serves the last slot, so no node serves any.
    Down,
    /// All slots that hold keys move to the next node, again and again.
    Migration,
}

impl ClusterFault {
    /// Calls `during` while the cluster has the fault. The cluster serves again when this returns.
    pub fn inject(self, cluster: &Cluster, during: &mut dyn FnMut()) -> io::Result<()> {
        let nodes = cluster.nodes();
        match self {
            Self::Down => {
                nodes
                    .iter()
                    .try_for_each(|node| node.command::<()>(&["CLUSTER", "DELSLOTS", LAST_SLOT]))?;
                during();
                let owner = nodes
                    .last()
                    .ok_or_else(|| io::Error::other("there is no node"))?;
                owner.command::<()>(&["CLUSTER", "ADDSLOTS", LAST_SLOT])?;
                let serves = |node: &Server| {
                    Ok(node
                        .command::<String>(&["CLUSTER", "INFO"])?
                        .contains("state:ok"))
                };
                nodes
                    .iter()
                    .try_for_each(|node| until("the cluster serves", || serves(node)))
            }
            Self::Migration => std::thread::scope(|scope| {
                let (over, is_over) = channel();
                let migration = scope.spawn(move || migrate_until(cluster, &is_over));
                during();
                drop(over);
                migration
                    .join()
                    .map_err(|_| io::Error::other("the migration panicked"))?
            }),
        }
    }
}

/// Moves each slot that holds a key to the next node, until the sender is dropped.
fn migrate_until(cluster: &Cluster, is_over: &Receiver<()>) -> io::Result<()> {
    let nodes = cluster.nodes();
    let continues = || is_over.try_recv() == Err(TryRecvError::Empty);
    while continues() {
        for (i, node) in nodes.iter().enumerate() {
            let keys: Vec<String> = node.command(&["KEYS", "*"])?;
            for key in keys.iter().take_while(|_| continues()) {
                let slot = node.command(&["CLUSTER", "KEYSLOT", key])?;
                if cluster.owner(slot)?.port() == node.port() {
                    cluster.migrate(slot, (i + 1) % nodes.len())?;
                }
            }
        }
    }
    Ok(())
}
