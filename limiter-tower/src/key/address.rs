//! Addresses as keys.

use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::header::FORWARDED;
use http::{HeaderName, HeaderValue};
use limiter_core::{IpBlock, Key, KeyBuf};
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

use super::extract::KeyExtractor;
use super::trust::Trust;
use super::{forwarded, node};
use crate::head::RequestHead;

/// The address of the connection, as an extension of the request. A server built on hyper inserts it; axum and tonic bring
/// their own (features `axum`, `tonic`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Returns the address of the connection; an IPv4-mapped one as IPv4.
fn peer(head: &RequestHead<'_>) -> Option<IpAddr> {
    let extensions = head.extensions();
    let address: Option<SocketAddr> = None;
    #[cfg(feature = "axum")]
    let address = address.or_else(|| {
        extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|info| info.0)
    });
    #[cfg(feature = "axum")]
    let address = address.or_else(|| {
        extensions
            .get::<MockConnectInfo<SocketAddr>>()
            .map(|info| info.0)
    });
    #[cfg(feature = "tonic")]
    let address = address.or_else(|| {
        extensions
            .get::<TcpConnectInfo>()
            .and_then(TcpConnectInfo::remote_addr)
    });
    let address = address.or_else(|| extensions.get::<Peer>().map(|peer| peer.0));
    address.map(|address| address.ip().to_canonical())
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client's address: the connection's, or behind proxies that are [trusted](Trust), from `X-Forwarded-For`, `Forwarded`
/// (RFC 7239) or a [field with one address](Self::header).
///
/// Several lines of the field are one list, in their order. Each line is read from the right, so a client cannot change how the
/// proxies' entries are read. Empty entries do not count. An entry may have a port, brackets, quotes and a zone, which are
/// dropped. An IPv4-mapped IPv6 address is the IPv4 address.
///
/// Read only the field that your proxies write: a proxy that writes `X-Forwarded-For` forwards a client's `Forwarded`
/// unchanged.
///
/// ```
/// use limiter_tower::RequestHead;
/// use limiter_tower::key::{ClientAddress, Peer, KeyExtractor, Trust};
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Peer("[2001:db8::7]:4711".parse().unwrap()));
/// assert_eq!(ClientAddress::peer().key(&RequestHead::from(&request)).unwrap().as_ref(), b"2001:db8::/64");
///
/// let key = ClientAddress::x_forwarded_for(Trust::Hops(1));
/// let request = http::Request::get("/").header("x-forwarded-for", "1.1.1.1, 203.0.113.7").body(()).unwrap();
/// // The client wrote 1.1.1.1. The proxy appended where the request came from.
/// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"203.0.113.7");
/// ```
#[derive(Clone, Debug)]
pub struct ClientAddress {
    field: Field,
    trust: Trust,
    ipv6_prefix: u8,
}

#[derive(Clone, Debug)]
enum Field {
    XForwardedFor,
    Forwarded,
    /// A field with a single address, which the nearest proxy sets.
    Single(HeaderName),
}

impl ClientAddress {
    /// Returns the extractor of the connection's address: the client's, if no proxy is in front.
    ///
    /// Found in axum's `ConnectInfo<SocketAddr>` (feature `axum`; serve with
    /// `into_make_service_with_connect_info::<SocketAddr>()`; in tests, axum's layer `MockConnectInfo` outside this one), else in
    /// tonic's `TcpConnectInfo` (feature `tonic`), else in [`Peer`]. A request with none of them has no key.
    #[must_use]
    pub const fn peer() -> Self {
        Self::x_forwarded_for(Trust::Hops(0))
    }

    /// Returns the extractor that reads `X-Forwarded-For`.
    #[must_use]
    pub const fn x_forwarded_for(trust: Trust) -> Self {
        Self {
            field: Field::XForwardedFor,
            trust,
            ipv6_prefix: IPV6_PREFIX,
        }
    }

    /// Returns the extractor that reads `Forwarded`.
    #[must_use]
    pub const fn forwarded(trust: Trust) -> Self {
        Self {
            field: Field::Forwarded,
            trust,
            ipv6_prefix: IPV6_PREFIX,
        }
    }

    /// Returns the extractor that reads a field with a single address, such as `X-Real-IP` or `CF-Connecting-IP`.
    ///
    /// With [`Trust::Networks`], the field counts only if the peer is in them; any other peer is the client itself. With
    /// [`Trust::Hops`] of 1 or more, the field of every peer counts, so nobody may reach the server without the proxy.
    ///
    /// The trusted proxy must set the field, or remove a client's. A field on several lines, or with anything but one address, is no key.
    ///
    /// ```
    /// use limiter_tower::RequestHead;
    /// use limiter_tower::key::{ClientAddress, KeyExtractor, Peer, Trust};
    ///
    /// let proxies = Trust::Networks(["173.245.48.0/20".parse()?].into());
    /// let key = ClientAddress::header(http::HeaderName::from_static("cf-connecting-ip"), proxies);
    /// let mut request = http::Request::get("/").header("cf-connecting-ip", "2001:db8::7").body(())?;
    /// request.extensions_mut().insert(Peer("173.245.48.9:4711".parse()?));
    /// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"2001:db8::/64");
    ///
    /// request.extensions_mut().insert(Peer("203.0.113.7:4711".parse()?)); // It bypasses the proxy.
    /// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"203.0.113.7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn header(name: HeaderName, trust: Trust) -> Self {
        Self {
            field: Field::Single(name),
            trust: match trust {
                Trust::Hops(hops) => Trust::Hops(hops.min(1)),
                networks @ Trust::Networks(_) => networks,
            },
            ipv6_prefix: IPV6_PREFIX,
        }
    }

    /// Sets how many leading bits of an IPv6 address are the key. Default: 64, because one client controls at least a /64.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    /// Returns the client's address.
    #[must_use]
    pub fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        match &self.field {
            Field::XForwardedFor => {
                let lines = head.headers().get_all(X_FORWARDED_FOR).iter().rev();
                self.trust.client(peer(head), lines.flat_map(entries))
            }
            Field::Forwarded => {
                let lines = head.headers().get_all(FORWARDED).iter().rev();
                let elements = lines.flat_map(|line| forwarded::elements(line.as_bytes()));
                self.trust
                    .client(peer(head), elements.map(forwarded::address))
            }
            Field::Single(name) => {
                let mut lines = head.headers().get_all(name).iter();
                let line = lines.next();
                let is_single = lines.next().is_none();
                let entry = line.map(|line| node::address(line.as_bytes()).filter(|_| is_single));
                self.trust.client(peer(head), entry.into_iter())
            }
        }
    }
}

/// The entries of one line of `X-Forwarded-For` from the right.
fn entries(line: &HeaderValue) -> impl Iterator<Item = Option<IpAddr>> {
    let entries = line
        .as_bytes()
        .rsplit(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii);
    entries.filter(|entry| !entry.is_empty()).map(node::address)
}

impl KeyExtractor for ClientAddress {
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        self.address(head)
            .map(|address| self::key(address, self.ipv6_prefix))
    }

    fn kind(&self) -> &'static str {
        "address"
    }
}

/// How many leading bits of an IPv6 address are the key by default.
const IPV6_PREFIX: u8 = 64;

/// Returns an address's key; for IPv6 its network's, unless the prefix is the whole address.
fn key(address: IpAddr, ipv6_prefix: u8) -> KeyBuf {
    if ipv6_prefix >= 128 {
        address.to_key()
    } else {
        IpBlock::with_prefix(address, ipv6_prefix).to_key()
    }
}
