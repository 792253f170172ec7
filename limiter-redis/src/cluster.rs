//! Redis Cluster: which node serves a slot, and following redirections.

pub(crate) mod node_pool;
pub(crate) mod redirect;
pub(crate) mod slots;
