//! Trust in proxies.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// The most trusted entries that are skipped; more is no chain of proxies but an attempt to keep the server busy.
const MAX_SKIPPED: usize = 32;

/// The proxies to trust.
///
/// Each proxy appends the address of its caller, so only the right end of the list is trustworthy. The client may have written
/// the rest.
#[derive(Clone, Debug)]
pub enum Trust {
    /// This many proxies are in front of the server, the one that connects to it included. The client's address is the entry
    /// this far from the right. With 0 it is the peer's, and the header is ignored.
    ///
    /// A request with fewer entries did not come through all proxies and has no key.
    Hops(usize),
    /// Trusts proxies in these networks: `Trust::Networks(["10.0.0.0/8".parse()?].into())`. The client is the first address outside of them, from the peer to the left. If all
    /// addresses are inside, it is the leftmost.
    ///
    /// An entry that is no address (`unknown`, `_hidden`, malformed) ends the search without a key, and so do more than 32
    /// trusted entries.
    Networks(Arc<[IpNet]>),
}

impl Trust {
    /// Returns the client's address, given the peer's and the entries of the list from the right.
    pub(super) fn client(
        &self,
        peer: Option<IpAddr>,
        mut entries: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        match self {
            Self::Hops(0) => peer,
            Self::Hops(hops) => entries.nth(hops - 1)?,
            Self::Networks(networks) => {
                let trusted =
                    |address: &IpAddr| networks.iter().any(|network| network.contains(address));
                let mut client = peer?;
                let mut skipped = 0;
                while trusted(&client) {
                    if skipped > MAX_SKIPPED {
                        return None;
                    }
                    let Some(entry) = entries.next() else { break };
                    (client, skipped) = (entry?, skipped + 1);
                }
                Some(client)
            }
        }
    }
}
