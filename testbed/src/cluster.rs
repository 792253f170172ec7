//! The faults of a Redis Cluster.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::scene::{Scene, until};
use limiter_testkit::server::{Cluster, Reply, Server};

/// A fault of a Redis Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterFault {
    /// No node serves the last slot, so no node serves any.
    Down,
    /// All slots that hold keys move to the next node, again and again.
    Migration,
}

impl fmt::Display for ClusterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "CLUSTERDOWN",
            Self::Migration => "slot migration",
        })
    }
}

/// A Redis Cluster. Its nodes announce their addresses, so there is no proxy.
#[derive(Debug)]
pub struct ClusterScene {
    cluster: Arc<Cluster>,
    migrating: Option<(Arc<AtomicBool>, JoinHandle<io::Result<()>>)>,
}

/// The slot that no node serves while the cluster is down.
const LAST_SLOT: &str = "16383";

impl ClusterScene {
    /// Starts a cluster of three nodes.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start() -> io::Result<Self> {
        Ok(Self { cluster: Arc::new(Cluster::start()?), migrating: None })
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

    fn direct_url(&self) -> String {
        self.cluster.url()
    }

    fn begin(&mut self, fault: ClusterFault) -> io::Result<()> {
        match fault {
            ClusterFault::Down => {
                for node in self.cluster.nodes() {
                    node.expect_ok(&["CLUSTER", "DELSLOTS", LAST_SLOT])?;
                }
            }
            ClusterFault::Migration => {
                let (over, cluster) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.cluster));
                let stop = Arc::clone(&over);
                self.migrating = Some((over, std::thread::spawn(move || migrate_until(&cluster, &stop))));
            }
        }
        Ok(())
    }

    fn end(&mut self, fault: ClusterFault) -> io::Result<()> {
        match (fault, self.migrating.take()) {
            (ClusterFault::Down, _) => {
                let nodes = self.cluster.nodes();
                let owner = nodes.last().ok_or_else(|| io::Error::other("there is no node"))?;
                owner.expect_ok(&["CLUSTER", "ADDSLOTS", LAST_SLOT])?;
                until("the cluster serves", || {
                    let serves = |node: &Server| Ok(node.command(&["CLUSTER", "INFO"])?.text().contains("state:ok"));
                    nodes.iter().map(serves).try_fold(true, |all, serves: io::Result<bool>| Ok(all && serves?))
                })
            }
            (ClusterFault::Migration, Some((over, migrating))) => {
                over.store(true, Ordering::Relaxed);
                migrating.join().map_err(|_| io::Error::other("the migration panicked"))?
            }
            (ClusterFault::Migration, None) => Ok(()),
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
