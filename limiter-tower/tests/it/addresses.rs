//! Spoofed and malformed addresses, and a property: no header chooses a key outside the rule.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use http::{HeaderName, HeaderValue, Request};
use limiter_core::policy;
use limiter_tower::key::{ClientAddress, Header, KeyExtractor, Peer, Trust};
use limiter_tower::{LimitLayer, RequestHead};
use proptest::prelude::*;
use tower::ServiceExt;

use crate::common::{CLOSED, get, hello, rule};

const FIELDS: [&str; 2] = ["x-forwarded-for", "forwarded"];
const PEER: &str = "10.0.0.1:80";

fn request(peer: &str, name: &str, lines: &[impl AsRef<[u8]>]) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Peer(peer.parse().unwrap()));
    for line in lines {
        let name: HeaderName = name.parse().unwrap();
        let value = HeaderValue::from_bytes(line.as_ref()).unwrap();
        request.headers_mut().append(name, value);
    }
    request
}

fn key(extractor: &impl KeyExtractor, request: &Request<()>) -> Option<String> {
    let key = extractor.key(&RequestHead::from(request))?;
    Some(String::from_utf8(key.as_ref().to_vec()).unwrap())
}

fn extractor(field: &str, trust: Trust) -> ClientAddress {
    match field {
        "forwarded" => ClientAddress::forwarded(trust),
        "x-real-ip" => ClientAddress::header(HeaderName::from_static("x-real-ip"), trust),
        _ => ClientAddress::x_forwarded_for(trust),
    }
}

/// The client by the lines of a field.
fn client(field: &str, trust: Trust, peer: &str, lines: &[&str]) -> Option<String> {
    key(&extractor(field, trust), &request(peer, field, lines))
}

fn networks() -> Trust {
    let networks = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap());
    Trust::Networks(networks.into())
}

#[test]
fn a_peer_is_the_client_unless_it_is_a_trusted_proxy() {
    for (peer, prefix, expected) in [
        ("203.0.113.7:4711", 64, "203.0.113.7"),
        ("[::ffff:203.0.113.7]:80", 64, "203.0.113.7"),
        ("[2001:db8:1:2:3::4]:80", 64, "2001:db8:1:2::/64"),
        ("[fe80::1%3]:80", 64, "fe80::/64"),
        ("[2001:db8:1:2:3::4]:80", 128, "2001:db8:1:2:3::4"),
        ("[2001:db8:1:2:3::4]:80", 48, "2001:db8:1::/48"),
    ] {
        let by_peer = ClientAddress::peer;
        let mut extractors = vec![by_peer().ipv6_prefix(prefix)];
        if prefix == 64 {
            let trusts = || [Trust::Hops(0), networks()].into_iter();
            let of_fields = FIELDS.map(|field| trusts().map(|trust| extractor(field, trust)));
            extractors.extend(
                [by_peer()]
                    .into_iter()
                    .chain(of_fields.into_iter().flatten()),
            );
        }
        for field in ["x-forwarded-for", "forwarded", "x-real-ip"] {
            let spoofed = request(peer, field, &["for=1.1.1.1", "1.1.1.1"]);
            for extractor in &extractors {
                assert_eq!(
                    key(extractor, &spoofed).as_deref(),
                    Some(expected),
                    "{peer}"
                );
            }
        }
    }
    assert_eq!(key(&ClientAddress::peer(), &Request::new(())), None);
}

/// The number of trusted proxies, or `net` for trusted networks; the peer; the lines of the field; and the client.
const X_FORWARDED_FOR: &str = "
    1   | 10.0.0.1:80 | 1.1.1.1, 203.0.113.7 | 203.0.113.7
    1   | 10.0.0.1:80 | 1.1.1.1 | 203.0.113.7 | 203.0.113.7
    1   | 10.0.0.1:80 | 9.9.9.9,1.1.1.1 | 203.0.113.7 | 203.0.113.7
    2   | 10.0.0.1:80 | 9.9.9.9, 203.0.113.7, 10.0.0.2 | 203.0.113.7
    2   | 10.0.0.1:80 | 203.0.113.7 | none
    1   | 10.0.0.1:80 | none
    1   | 10.0.0.1:80 | 1.1.1.1, nonsense | none
    1   | 10.0.0.1:80 | nonsense, \t[2001:db8::1%eth0]:443 | 2001:db8::/64
    1   | 10.0.0.1:80 | ::ffff:203.0.113.7 | 203.0.113.7
    net | 10.0.0.1:80 | 1.1.1.1, 203.0.113.7, 10.0.0.2 | 203.0.113.7
    net | 10.0.0.1:80 | 10.9.9.9, 203.0.113.7 | 203.0.113.7
    net | 10.0.0.1:80 | 10.0.0.3, 10.0.0.2 | 10.0.0.3
    net | 10.0.0.1:80 | 10.0.0.1
    net | [fd00::1]:80 | 203.0.113.7 | 203.0.113.7
    net | [::ffff:10.0.0.1]:80 | 203.0.113.7 | 203.0.113.7
    net | 10.0.0.1:80 | 1.1.1.1, nonsense, 10.0.0.2 | none
";
const FORWARDED: &str = r#"
    1   | 10.0.0.1:80 | for=1.1.1.1 | for="[2001:db8::1]:80";by=x | 2001:db8::/64
    1   | 10.0.0.1:80 | for=1.1.1.1, for=unknown | none
    net | 10.0.0.1:80 | for=1.1.1.1, for=203.0.113.7, for="10.0.0.2:80" | 203.0.113.7
    net | 10.0.0.1:80 | for="evil, for=203.0.113.7 | 203.0.113.7
    net | 10.0.0.1:80 | for=_hidden | none
"#;

/// A field with one address. The first peer that is no trusted proxy is the client.
const X_REAL_IP: &str = "
    net | 10.0.0.1:80 | 203.0.113.7 | 203.0.113.7
    net | 10.0.0.1:80 | [2001:db8::1]:443 | 2001:db8::/64
    net | 10.0.0.1:80 | ::ffff:203.0.113.7 | 203.0.113.7
    net | 10.0.0.1:80 | 10.9.9.9 | 10.9.9.9
    net | 10.0.0.1:80 | 10.0.0.1
    net | 203.0.113.9:80 | 1.1.1.1 | 203.0.113.9
    net | [2001:db8::9]:80 | 1.1.1.1 | 2001:db8::/64
    net | 10.0.0.1:80 | 1.1.1.1, 203.0.113.7 | none
    net | 10.0.0.1:80 | 1.1.1.1 | 203.0.113.7 | none
    net | 10.0.0.1:80 | | 203.0.113.7 | none
    net | 10.0.0.1:80 | unknown | none
    0   | 10.0.0.1:80 | 203.0.113.7 | 10.0.0.1
    1   | 10.0.0.1:80 | 203.0.113.7 | 203.0.113.7
    2   | 10.0.0.1:80 | 203.0.113.7 | 203.0.113.7
    1   | 10.0.0.1:80 | 1.1.1.1 | 203.0.113.7 | none
    1   | 10.0.0.1:80 | none
";

#[test]
fn trust_takes_hops_from_the_right() {
    for (field, rows) in [
        ("x-forwarded-for", X_FORWARDED_FOR),
        ("forwarded", FORWARDED),
        ("x-real-ip", X_REAL_IP),
    ] {
        for row in rows.lines().skip(1) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [trust, peer, lines @ .., expected] = &cells[..] else {
                panic!("{row}")
            };
            let trust = trust.parse().map_or_else(|_| networks(), Trust::Hops);
            let found = client(field, trust, peer, lines);
            assert_eq!(found.as_deref().unwrap_or("none"), *expected, "{row}");
        }
    }
    // No chain of proxies is longer than 32, and no other text is too long.
    let chain = |proxies| format!("203.0.113.7{}", ", 10.0.0.2".repeat(proxies));
    for (field, trust, line, found) in [
        ("x-forwarded-for", networks(), chain(32), true),
        ("x-forwarded-for", networks(), chain(33), false),
        ("x-forwarded-for", networks(), chain(100_000), false),
        (
            "x-forwarded-for",
            Trust::Hops(1),
            "x".repeat(1_000_000),
            false,
        ),
        (
            "forwarded",
            Trust::Hops(1),
            format!("for={}", "\"".repeat(100_000)),
            false,
        ),
    ] {
        let client = client(field, trust, PEER, &[&line]);
        assert_eq!(client.is_some(), found, "{field}: {}", line.len());
    }
}

/// The client in each of these entries.
const ENTRIES: &str = r#"
    192.0.2.1, 192.0.2.1:4711, "192.0.2.1:4711", 192.0.2.1:_hidden => 192.0.2.1
    ::ffff:192.0.2.1, [::ffff:c000:201]:80, "[::ffff:192.0.2.1%1]" => 192.0.2.1
    2001:db8::1, 2001:DB8::1, [2001:db8::1], "[2001:db8::1]:4711", [2001:db8::1]:_x => 2001:db8::/64
    fe80::1%eth0, [fe80::1%25eth0]:80 => fe80::/64
    ::1 => ::/64
    unknown, _hidden, _hidden:80, example.com, "", ", "192.0.2.1, 192.0.2.1", "192.0.2.\1" => none
    192.0.2, 192.0.2.256, 192.0.2.01, 192.0.2.1:, 192.0.2.1:123456, 192.0.2.1:80:80, 192.0.2.1:_ => none
    [2001:db8::1, 2001:db8::1], [2001:db8::1]80, [2001:db8::1]:, [192.0.2.1], [[::1]], [], []:80 => none
    2001:db8::1%, [fe80::1%], fe80::1%a b, :, ::1::, 192.0.2.1 192.0.2.2, 192.0.2.1é => none
"#;

#[test]
fn an_entry_is_an_address_with_or_without_a_port_brackets_quotes_and_a_zone() {
    for row in ENTRIES.lines().skip(1) {
        let (line, expected) = row.trim().split_once(" => ").unwrap();
        for (hops, entry) in (1..).zip(line.rsplit(", ")) {
            let found = client("x-forwarded-for", Trust::Hops(hops), PEER, &[line]);
            assert_eq!(found.as_deref().unwrap_or("none"), expected, "{entry}");
        }
    }
}

/// The elements of a line, and the clients in them from the right. An open quote hides nothing to its right.
const ELEMENTS: &str = r#"
    for=192.0.2.2, for=192.0.2.1;proto=http;by=203.0.113.43 => 192.0.2.1 192.0.2.2 none
    For="[2001:db8:cafe::17]:4711" => 2001:db8:cafe::/64 none
    by="a,b;for=192.0.2.9"; FOR = 192.0.2.1 => none
    by="a,\";for=192.0.2.9";FOR=192.0.2.1 ,,  => 192.0.2.1 none
    for=192.0.2.1;by="a\", for=192.0.2.9" => 192.0.2.1 none
    for=unknown, for=_hidden, for="_x:80" => none none none
    proto=https, for=192.0.2.1;for=192.0.2.2, for, ; => none none none none
    for="evil, for=192.0.2.1 => 192.0.2.1 none
    for=192.0.2.7, for="evil, for=192.0.2.1 => 192.0.2.1 none
    for="\", for=192.0.2.1 => 192.0.2.1 none
"#;

#[test]
fn elements_of_forwarded_are_read_from_the_right() {
    for row in ELEMENTS.lines().skip(1) {
        let (line, expected) = row.trim_start().split_once(" => ").unwrap();
        for (hops, expected) in (1..).zip(expected.split(' ')) {
            let found = client("forwarded", Trust::Hops(hops), PEER, &[line]);
            assert_eq!(
                found.as_deref().unwrap_or("none"),
                expected,
                "{line}, {hops}"
            );
        }
    }
}

#[test]
fn a_host_has_no_user_and_no_password() {
    let request = Request::get("http://user:secret@Example.com:8080/")
        .body(())
        .unwrap();
    assert_eq!(RequestHead::from(&request).host(), Some("Example.com:8080"));
}

#[test]
fn a_field_on_two_lines_or_of_many_bytes_is_no_key() {
    let field = Header::new(HeaderName::from_static("x-api-key"));
    let of = |lines: &[&str]| key(&field, &request(PEER, "x-api-key", lines));
    let most = "x".repeat(256);
    assert_eq!(of(&[&most]), Some(most));
    assert_eq!(of(&[&"x".repeat(257)]), None);
    assert_eq!(of(&["a", "b"]), None);
}

#[tokio::test]
async fn a_mocked_connection_has_an_address() {
    let mocked = |address: &str| MockConnectInfo(address.parse::<SocketAddr>().unwrap());
    let (rule, _clock) = rule("search", policy!("1/1m"));
    let limited = hello(LimitLayer::new([rule], CLOSED));
    for (address, expected) in [
        ("203.0.113.7:80", 200),
        ("203.0.113.7:81", 429),
        ("[2001:db8::1]:80", 200),
        ("[2001:db8::2]:80", 429),
    ] {
        let router = limited.clone().layer(mocked(address));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), expected, "{address}");
    }
    // A real connection comes first: `get` is from 127.0.0.1, which has not called yet.
    let router = limited.layer(mocked("203.0.113.7:80"));
    assert_eq!(get(&router).await.status, 200);
    assert_eq!(get(&router).await.status, 429);
}

fn trust() -> impl Strategy<Value = Trust> {
    prop_oneof![(0..4_usize).prop_map(Trust::Hops), Just(networks())]
}

fn header_value() -> impl Strategy<Value = Vec<u8>> {
    let tokens = "([0-9a-fA-F:.,;=\\[\\]\"\\\\ %_-]|for=|unknown|10\\.0\\.0\\.1|, ){0,40}";
    let bytes = prop::collection::vec(any::<u8>(), 0..60);
    prop_oneof![tokens.prop_map(String::into_bytes), bytes]
        .prop_filter("a value", |bytes| HeaderValue::from_bytes(bytes).is_ok())
}

proptest! {
    /// A client's text to the left of the proxies' entries has no effect.
    #[test]
    fn what_the_client_writes_changes_no_key(
        evil in prop::collection::vec(header_value(), 0..4),
        same_line in any::<bool>(),
        (hops, by_hops) in (1..3_usize, any::<bool>()),
    ) {
        for (field, name) in FIELDS.into_iter().zip(["", "for="]) {
            let mut lines = evil.clone();
            let mut end = format!("{name}203.0.113.7");
            if hops == 2 {
                end += &format!(", {name}10.0.0.2");
            }
            let left = if same_line { lines.pop().unwrap_or_default() } else { Vec::new() };
            lines.push([&left[..], b",", end.as_bytes()].concat());
            let trust = if by_hops { Trust::Hops(hops) } else { networks() };
            let found = key(&extractor(field, trust), &request(PEER, field, &lines));
            prop_assert_eq!(found.as_deref(), Some("203.0.113.7"));
        }
    }

    /// No header makes an extractor panic or find an address that is not canonical.
    #[test]
    fn no_header_panics(lines in prop::collection::vec(header_value(), 0..4), trust in trust()) {
        for field in ["x-forwarded-for", "forwarded", "x-real-ip", "x-api-key", "host"] {
            let request = request(PEER, field, &lines);
            let head = RequestHead::from(&request);
            let found = extractor(field, trust.clone()).address(&head);
            prop_assert!(found.is_none_or(|address| address == address.to_canonical()));
            let _ = head.host();
            if let Some(found) = Header::new(HeaderName::from_static("x-api-key")).key(&head) {
                prop_assert!(lines.len() == 1 && found.as_ref() == &lines[0][..]);
            }
        }
    }
}
