//! The faults of a Redis Cluster.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use limiter_testkit::server::{Cluster, Reply, Server, until};

use crate::scene::Scene;

/// The slot that no node serves while the cluster is down.
const LAST_SLOT: &str = "16383";

/// A fault of a Redis Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// No node serves the last slot, so no node serves any.
    Down,
    /// All slots that hold keys move to the next node, again and again.
    Migration,
}

/// A Redis Cluster. Its nodes announce their addresses, so there is no proxy.
#[derive(Debug)]
pub struct ClusterScene {
    cluster: Arc<Cluster>,
    /// Whether the migration is over.
    over: Arc<AtomicBool>,
    migration: Option<JoinHandle<io::Result<()>>>,
}

impl ClusterScene {
    /// Starts a cluster of three nodes.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start() -> io::Result<Self> {
        Ok(Self { cluster: Arc::new(Cluster::start()?), over: Arc::default(), migration: None })
    }

    /// Returns the cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

impl Scene for ClusterScene {
    type Fault = ClusterFault;

    fn url(&self) -> String {
        self.cluster.url()
    }

    fn begin(&mut self, fault: ClusterFault) -> io::Result<()> {
        match fault {
            ClusterFault::Down => {
                self.cluster.nodes().iter().try_for_each(|node| node.expect_ok(&["CLUSTER", "DELSLOTS", LAST_SLOT]))?;
            }
            ClusterFault::Migration => {
                self.over.store(false, Ordering::Relaxed);
                let (cluster, over) = (Arc::clone(&self.cluster), Arc::clone(&self.over));
                self.migration = Some(std::thread::spawn(move || migrate_until(&cluster, &over)));
            }
        }
        Ok(())
    }

    fn end(&mut self, fault: ClusterFault) -> io::Result<()> {
        match fault {
            ClusterFault::Down => {
                let nodes = self.cluster.nodes();
                let owner = nodes.last().ok_or_else(|| io::Error::other("there is no node"))?;
                owner.expect_ok(&["CLUSTER", "ADDSLOTS", LAST_SLOT])?;
                until("the cluster serves", || {
                    let serves = |node: &Server| Ok(node.command(&["CLUSTER", "INFO"])?.text().contains("state:ok"));
                    nodes.iter().map(serves).try_fold(true, |all, serves: io::Result<bool>| Ok(all && serves?))
                })
            }
            ClusterFault::Migration => {
                self.over.store(true, Ordering::Relaxed);
                let migration = self.migration.take().ok_or_else(|| io::Error::other("there is no migration"))?;
                migration.join().map_err(|_| io::Error::other("the migration panicked"))?
            }
        }
    }
}

/// Moves each slot that holds a key to the next node, until it is told to stop.
fn migrate_until(cluster: &Cluster, over: &AtomicBool) -> io::Result<()> {
    let nodes = cluster.nodes();
    while !over.load(Ordering::Relaxed) {
        for (i, node) in nodes.iter().enumerate() {
            let Reply::List(keys) = node.command(&["KEYS", "*"])? else { continue };
            for key in keys.into_iter().take_while(|_| !over.load(Ordering::Relaxed)) {
                let slot = node.command(&["CLUSTER", "KEYSLOT", &key.text()])?.int();
                let slot = u16::try_from(slot).map_err(io::Error::other)?;
                if cluster.owner(slot)?.port() == node.port() {
                    cluster.migrate(slot, (i + 1) % nodes.len())?;
                }
            }
        }
    }
    Ok(())
}
