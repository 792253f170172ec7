//! Keys, which identify the clients that a limiter limits.

use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

/// A type that identifies a client: the key that a limiter's methods take.
///
/// | type | bytes of the key |
/// |---|---|
/// | `&str`, `String` | the text |
/// | `&[u8]`, `[u8; N]`, `Vec<u8>` | the bytes themselves |
/// | integers | the number in decimal: `42` is the key `"42"` |
/// | `IpAddr`, `Ipv4Addr`, `Ipv6Addr` | the address as text; an IPv4-mapped IPv6 address is written as IPv4 |
/// | [`IpBlock`] | an IPv4 address, or the network of an IPv6 address: `2001:db8:0:1::/64` |
/// | `uuid::Uuid` (feature `uuid`) | the hyphenated text |
/// | tuples of two to four of these | the parts, separated by `,`; a `,` or `\` inside a part is escaped with `\` |
///
/// Keys are readable text wherever possible, so operators can type them. So are references to these types. Borrowed
/// strings and slices are never copied, and other keys of up to 32 bytes are built without an allocation.
///
/// ```
/// # use limiter_core::{Limiter, policy};
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # let limiter = Limiter::new("api", policy!("5/1s"), MemoryStore::new());
/// let address: std::net::IpAddr = [203, 0, 113, 7].into();
/// limiter.acquire("customer 7").now()?;
/// limiter.acquire(7).now()?;
/// limiter.acquire(("login", address)).now()?;
/// assert_eq!(limiter.status("login,203.0.113.7").now()?.used(), 1);
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "expected text, bytes, an integer, an IP address, a UUID (feature `uuid`) or a tuple of these",
    note = "implement `Key` for your own type, or pass its text or bytes"
)]
pub trait Key {
    /// The type that holds the key's bytes, such as `&[u8]` or [`KeyBuf`].
    type Bytes: AsRef<[u8]> + Clone + Send + Sync + Unpin;

    /// Returns the key's bytes. Keys with equal bytes share a log.
    fn to_key(self) -> Self::Bytes;
}

/// An owned key. Up to 32 bytes are stored without an allocation.
#[derive(Clone, Default)]
pub struct KeyBuf(SmallVec<[u8; 32]>);

impl KeyBuf {
    /// Returns the key of a tuple with any number of parts, as the `Key` of shorter tuples does.
    #[must_use]
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut key = Self::default();
        for (i, part) in parts.into_iter().enumerate() {
            if i > 0 {
                key.push(b",");
            }
            let is_special = |byte: &u8| matches!(byte, b',' | b'\\');
            for piece in part.as_ref().split_inclusive(is_special) {
                match piece {
                    [plain @ .., special @ (b',' | b'\\')] => {
                        key.push(plain);
                        key.push(&[b'\\', *special]);
                    }
                    plain => key.push(plain),
                }
            }
        }
        key
    }

    fn push(&mut self, more: &[u8]) {
        self.0.extend_from_slice(more);
    }

    fn push_display(&mut self, value: impl fmt::Display) {
        // Writing to memory cannot fail.
        let _ = write!(self.0, "{value}");
    }
}

impl From<&[u8]> for KeyBuf {
    fn from(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }
}

impl AsRef<[u8]> for KeyBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for KeyBuf {
    /// Prints only the length, because keys are often addresses or secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf({} bytes)", self.as_ref().len())
    }
}

/// Implements `Key` for references whose bytes can be borrowed.
macro_rules! borrowed {
    ($($type:ty: $bytes:path),* $(,)?) => {$(
        impl<'a> Key for &'a $type {
            type Bytes = &'a [u8];

            #[inline(always)]
            fn to_key(self) -> &'a [u8] {
                $bytes(self)
            }
        }
    )*};
}

borrowed! {
    str: str::as_bytes, &str: str::as_bytes, String: String::as_bytes,
    [u8]: AsRef::as_ref, Vec<u8>: AsRef::as_ref, KeyBuf: AsRef::as_ref,
}

impl<'a, const N: usize> Key for &'a [u8; N] {
    type Bytes = &'a [u8];

    #[inline(always)]
    fn to_key(self) -> &'a [u8] {
        self
    }
}

impl<const N: usize> Key for [u8; N] {
    type Bytes = Self;

    #[inline(always)]
    fn to_key(self) -> Self {
        self
    }
}

/// Implements `Key` for types that own their bytes.
macro_rules! owned {
    ($($type:ty => $bytes:ty),* $(,)?) => {$(
        impl Key for $type {
            type Bytes = $bytes;

            fn to_key(self) -> $bytes {
                self.into()
            }
        }
    )*};
}

owned! {
    String => Vec<u8>, Vec<u8> => Vec<u8>, KeyBuf => KeyBuf,
}

/// Implements `Key` for types that are written into a [`KeyBuf`], and for references to them.
macro_rules! written {
    ($($type:ty: |$key:ident, $value:ident| $write:expr);* $(;)?) => {$(
        impl Key for $type {
            type Bytes = KeyBuf;

            #[inline]
            fn to_key(self) -> KeyBuf {
                let (mut $key, $value) = (KeyBuf::default(), self);
                $write;
                $key
            }
        }

        impl Key for &$type {
            type Bytes = KeyBuf;

            #[inline]
            fn to_key(self) -> KeyBuf {
                (*self).to_key()
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty),*) => {
        written!($($integer: |key, number| key.push_display(number));*);
    };
}

integers!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

/// A key that identifies an IPv4 client by its address and an IPv6 client by its network.
///
/// An IPv6 client usually controls a whole /64, so a limit per IPv6 address does not limit it. An IPv4-mapped IPv6 address
/// is treated as IPv4. With 64 bits, the key of `2001:db8:0:1:aaaa::1` is `2001:db8:0:1::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpBlock {
    address: IpAddr,
    prefix: u8,
}

impl IpBlock {
    /// Returns the key of `address`. IPv6 addresses share a key if they are in the same /64 network.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self::with_prefix(address, 64)
    }

    /// Returns the key of `address`, with a network prefix of `prefix` bits for IPv6.
    ///
    /// A `prefix` above 128 is treated as 128. IPv4 addresses ignore it.
    #[must_use]
    pub const fn with_prefix(address: IpAddr, prefix: u8) -> Self {
        Self {
            address,
            prefix: if prefix < 128 { prefix } else { 128 },
        }
    }
}

fn push_ipv4(key: &mut KeyBuf, address: Ipv4Addr) {
    // Most keys of a web service are addresses, and `Display` takes as long as a decision.
    let mut text = [0; 15];
    let mut len = 0;
    let mut put = |byte| {
        text[len] = byte;
        len += 1;
    };
    for (i, octet) in address.octets().into_iter().enumerate() {
        if i > 0 {
            put(b'.');
        }
        if octet >= 100 {
            put(b'0' + octet / 100);
        }
        if octet >= 10 {
            put(b'0' + octet / 10 % 10);
        }
        put(b'0' + octet % 10);
    }
    key.push(&text[..len]);
}

fn push_ip(key: &mut KeyBuf, address: IpAddr) {
    match address.to_canonical() {
        IpAddr::V4(address) => push_ipv4(key, address),
        IpAddr::V6(address) => key.push_display(address),
    }
}

written! {
    Ipv4Addr: |key, address| push_ipv4(&mut key, address);
    Ipv6Addr: |key, address| push_ip(&mut key, address.into());
    IpAddr: |key, address| push_ip(&mut key, address);
    IpBlock: |key, block| match block.address.to_canonical() {
        IpAddr::V4(address) => push_ipv4(&mut key, address),
        IpAddr::V6(address) => {
            let host_bits = 128 - u32::from(block.prefix);
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            let network = Ipv6Addr::from_bits(address.to_bits() & mask);
            key.push_display(format_args!("{network}/{}", block.prefix));
        }
    };
}

#[cfg(feature = "uuid")]
written! {
    uuid::Uuid: |key, id| key.push(id.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()).as_bytes());
}

macro_rules! tuple {
    ($($part:ident . $i:tt),*) => {
        impl<$($part: Key),*> Key for ($($part,)*) {
            type Bytes = KeyBuf;

            fn to_key(self) -> KeyBuf {
                KeyBuf::from_parts([$(self.$i.to_key().as_ref()),*])
            }
        }
    };
}

tuple!(A.0, B.1);
tuple!(A.0, B.1, C.2);
tuple!(A.0, B.1, C.2, D.3);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: impl Key) -> String {
        String::from_utf8(key.to_key().as_ref().to_vec()).unwrap()
    }

    #[test]
    #[expect(
        clippy::needless_borrows_for_generic_args,
        reason = "references are keys, too"
    )]
    fn text_bytes_and_numbers_are_themselves() {
        let text = "customer 7";
        let owned = text.to_owned();
        let long = "x".repeat(100);
        let long = &*long;
        for (key, expected) in [
            (key(text), text),
            (key(&text), text),
            (key(&owned), text),
            (key(owned.clone()), text),
            (key(text.as_bytes()), text),
            (key(*b"customer 7"), text),
            (key(b"customer 7"), text),
            (key(long), long),
            (key(KeyBuf::from(long.as_bytes())), long),
            (key((long, 1))[..100].to_owned(), long),
            (key(i8::MIN), "-128"),
            (key(-7), "-7"),
            (key(i128::MIN), &i128::MIN.to_string()),
            (key(u128::MAX), &u128::MAX.to_string()),
        ] {
            assert_eq!(key, expected);
        }
        for number in [0, 1, 9, 10, 255, 1 << 40, u64::MAX] {
            assert_eq!(
                [key(number), key(&number)],
                [(); 2].map(|()| number.to_string())
            );
        }
    }

    #[test]
    fn addresses_are_canonical() {
        const PLAIN: &str = "2001:1111:2222:3333:4444:5555:6666:7777";
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let v6 = "2001:db8:0:1:aaaa::1";
        for (address, whole, block) in [
            ("203.0.113.7", "203.0.113.7", "203.0.113.7"),
            ("255.255.255.255", "255.255.255.255", "255.255.255.255"),
            ("::ffff:203.0.113.7", "203.0.113.7", "203.0.113.7"),
            (v6, v6, "2001:db8:0:1::/64"),
            ("::1", "::1", "::/64"),
            (PLAIN, PLAIN, "2001:1111:2222:3333::/64"),
        ] {
            let address = ip(address);
            assert_eq!([key(address), key(IpBlock::new(address))], [whole, block]);
            if let IpAddr::V6(v6) = address {
                assert_eq!(key(v6), whole);
            }
        }
        for octet in 0..=u8::MAX {
            let address = Ipv4Addr::from([octet, 255 - octet, 0, octet]);
            assert_eq!(key(address), address.to_string());
        }
        for (prefix, block) in [
            (0, "::/0"),
            (32, "2001:db8::/32"),
            (63, "2001:db8::/63"),
            (64, "2001:db8:0:1::/64"),
            (128, "2001:db8:0:1:aaaa::1/128"),
            (255, "2001:db8:0:1:aaaa::1/128"),
        ] {
            assert_eq!(key(IpBlock::with_prefix(ip(v6), prefix)), block);
        }
    }

    #[test]
    fn tuples_are_one_to_one() {
        assert_eq!(key(("login", 7)), "login,7");
        assert_eq!(key(("a,b", "c\\", -1)), "a\\,b,c\\\\,-1");
        let parts = [
            "", "a", "b", "ab", ",", "a,", ",b", "\\", "\\,", "a\\", ",,",
        ];
        let mut seen = std::collections::HashMap::new();
        for a in parts {
            for b in parts {
                assert_eq!(key(KeyBuf::from_parts([a, b])), key((a, b)));
                assert_eq!(seen.insert(key((a, b)), vec![a, b]), None);
                assert_eq!(seen.insert(key(((a, b), "x")), vec!["()", a, b]), None);
                for c in parts {
                    assert_eq!(seen.insert(key((a, b, c)), vec![a, b, c]), None);
                }
            }
        }
    }

    #[test]
    #[cfg(feature = "uuid")]
    fn uuids_are_hyphenated() {
        let text = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        assert_eq!(key(text.parse::<uuid::Uuid>().unwrap()), text);
    }
}
