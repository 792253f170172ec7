//! A Redis Cluster.

use std::io;
use std::time::Duration;

use super::process::{Server, until};

const SLOTS: usize = 16_384;

/// A Redis Cluster of masters without replicas. Dropping it stops all nodes.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster of three masters with evenly shared slots, and waits until it is ready.
    pub fn start() -> io::Result<Self> {
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let starting: Vec<_> = (0..3)
            .map(|_| std::thread::spawn(move || Server::start_with(&arguments)))
            .collect();
        let mut nodes = Vec::new();
        for node in starting {
            nodes.push(
                node.join()
                    .map_err(|_| io::Error::other("a node could not be started"))??,
            );
        }
        let cluster = Self { nodes };
        cluster.join()?;
        Ok(cluster)
    }

    fn join(&self) -> io::Result<()> {
        let count = self.nodes.len();
        for (i, node) in self.nodes.iter().enumerate() {
            node.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
            let slots = (SLOTS * i / count)..(SLOTS * (i + 1) / count);
            let mut add = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            add.extend(slots.map(|slot| slot.to_string()));
            node.command::<()>(&add)?;
            for other in &self.nodes[..i] {
                node.command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()])?;
            }
        }
        let known = format!("cluster_known_nodes:{count}\r");
        let signs = ["cluster_state:ok", "cluster_slots_ok:16384", &known];
        self.nodes.iter().try_for_each(|node| {
            until("the cluster serves", || {
                let info = node.command::<String>(&["CLUSTER", "INFO"])?;
                Ok(signs.iter().all(|sign| info.contains(sign)))
            })
        })
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns the nodes, for a test that kills or restarts one.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Returns the cluster's URL, which lists all nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Moves a slot with all its keys to the node with the index `to`, one key at a time, as `redis-cli --cluster reshard` does.
    pub fn migrate(&self, slot: u16, to: usize) -> io::Result<()> {
        let number = slot.to_string();
        let from = self.owner(slot)?;
        let to = &self.nodes[to];
        let [from_id, to_id]: [String; 2] = [
            from.command(&["CLUSTER", "MYID"])?,
            to.command(&["CLUSTER", "MYID"])?,
        ];
        to.command::<()>(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &from_id])?;
        from.command::<()>(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &to_id])?;
        let port = to.port().to_string();
        let first_key = || from.command::<Vec<String>>(&["CLUSTER", "GETKEYSINSLOT", &number, "1"]);
        while let Some(key) = first_key()?.first() {
            from.command::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])?;
            std::thread::sleep(Duration::from_millis(10));
        }
        // Meanwhile the old owner redirects every call.
        std::thread::sleep(Duration::from_millis(30));
        for node in [to, from].into_iter().chain(&self.nodes) {
            node.command::<()>(&["CLUSTER", "SETSLOT", &number, "NODE", &to_id])?;
        }
        Ok(())
    }

    /// Returns the node that serves `slot`.
    pub fn owner(&self, slot: u16) -> io::Result<&Server> {
        for node in &self.nodes {
            let nodes = node.command::<String>(&["CLUSTER", "NODES"])?;
            let own = nodes
                .lines()
                .find(|line| line.contains("myself"))
                .unwrap_or_default();
            let serves = own.split_whitespace().skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().ok()..=last.parse().ok()).contains(&Some(slot))
            });
            if serves {
                return Ok(node);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("no node serves slot {slot}"),
        ))
    }
}
