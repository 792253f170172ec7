//! Spoofed and malformed addresses, and a property: no header chooses a key outside the rule.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, HeaderValue, Request};
use limiter_tower::RequestHead;
use limiter_tower::key::{ClientAddress, Header, KeyExtractor, Peer, Trust};
use proptest::prelude::*;

fn request(peer: &str, lines: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Peer(peer.parse().unwrap()));
    for (name, value) in lines {
        let name: HeaderName = name.parse().unwrap();
        request
            .headers_mut()
            .append(name, HeaderValue::from_str(value).unwrap());
    }
    request
}

fn key(extractor: &impl KeyExtractor, request: &Request<()>) -> Option<String> {
    let key = extractor.key(&RequestHead::from(request))?;
    Some(String::from_utf8(key.as_ref().to_vec()).unwrap())
}

fn xff(trust: Trust, peer: &str, lines: &[&str]) -> Option<String> {
    let lines: Vec<_> = lines
        .iter()
        .map(|line| ("x-forwarded-for", *line))
        .collect();
    key(
        &ClientAddress::x_forwarded_for(trust),
        &request(peer, &lines),
    )
}

fn forwarded(trust: Trust, peer: &str, lines: &[&str]) -> Option<String> {
    let lines: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
    key(&ClientAddress::forwarded(trust), &request(peer, &lines))
}

/// The entries of one line from the right. `None` is no address.
fn entries(read: Read, line: &str, count: usize) -> Vec<Option<String>> {
    (1..=count)
        .map(|hops| read(Trust::Hops(hops), "10.0.0.1:80", &[line]))
        .collect()
}

fn networks() -> Trust {
    Trust::Networks(
        ["10.0.0.0/8", "fd00::/8"]
            .map(|network| network.parse().unwrap())
            .into(),
    )
}

/// Reads the client's address from the lines of a field.
type Read = fn(Trust, &str, &[&str]) -> Option<String>;

#[test]
fn the_peer_is_the_client_unless_proxies_are_trusted() {
    let spoofed = [
        ("x-forwarded-for", "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
    ];
    let request = request("203.0.113.7:4711", &spoofed);
    assert_eq!(
        key(&ClientAddress::peer(), &request).unwrap(),
        "203.0.113.7"
    );
    assert_eq!(
        key(&ClientAddress::x_forwarded_for(Trust::Hops(0)), &request).unwrap(),
        "203.0.113.7"
    );
    // The peer is no trusted proxy, so its header fields are ignored.
    assert_eq!(
        key(&ClientAddress::x_forwarded_for(networks()), &request).unwrap(),
        "203.0.113.7"
    );
    assert_eq!(
        key(&ClientAddress::forwarded(networks()), &request).unwrap(),
        "203.0.113.7"
    );
}

#[test]
fn peers_are_normalized() {
    for (peer, prefix, expected) in [
        ("[::ffff:203.0.113.7]:80", 64, "203.0.113.7"),
        ("[2001:db8:1:2:3::4]:80", 64, "2001:db8:1:2::/64"),
        ("[fe80::1%3]:80", 64, "fe80::/64"),
        ("[2001:db8:1:2:3::4]:80", 128, "2001:db8:1:2:3::4"),
        ("[2001:db8:1:2:3::4]:80", 48, "2001:db8:1::/48"),
    ] {
        assert_eq!(
            key(
                &ClientAddress::peer().ipv6_prefix(prefix),
                &request(peer, &[])
            )
            .unwrap(),
            expected
        );
    }
    let mapped = request("[2001:db8:1:2:3::4]:80", &[]);
    assert_eq!(
        key(&ClientAddress::peer(), &mapped).unwrap(),
        "2001:db8:1:2::/64",
        "the default"
    );
    assert_eq!(key(&ClientAddress::peer(), &Request::new(())), None);
}

/// Each case has the entries of the list in their order; a line ends at `|`.
#[test]
fn trust_takes_hops_from_the_right() {
    let client = Some("203.0.113.7");
    let too_many = |proxies: usize| format!("203.0.113.7{}", ", 10.0.0.2".repeat(proxies));
    let (at_most, more, endless) = (
        too_many(32),
        too_many(33),
        vec!["10.0.0.2"; 100_000].join(","),
    );
    let (garbage, quotes) = (
        "x".repeat(1_000_000),
        format!("for={}", "\"".repeat(100_000)),
    );
    for (trust, header, peer, entries, expected) in [
        (
            Trust::Hops(1),
            xff as Read,
            "10.0.0.1:80",
            "1.1.1.1, 203.0.113.7",
            client,
        ),
        (
            Trust::Hops(1),
            xff,
            "10.0.0.1:80",
            "1.1.1.1|203.0.113.7",
            client,
        ),
        (
            Trust::Hops(1),
            xff,
            "10.0.0.1:80",
            "9.9.9.9,1.1.1.1|203.0.113.7",
            client,
        ),
        (
            Trust::Hops(2),
            xff,
            "10.0.0.1:80",
            "9.9.9.9, 203.0.113.7, 10.0.0.2",
            client,
        ),
        // It did not come through both.
        (Trust::Hops(2), xff, "10.0.0.1:80", "203.0.113.7", None),
        (Trust::Hops(1), xff, "10.0.0.1:80", "", None),
        (
            Trust::Hops(1),
            xff,
            "10.0.0.1:80",
            "1.1.1.1, nonsense",
            None,
        ),
        (
            Trust::Hops(1),
            xff,
            "10.0.0.1:80",
            "nonsense, \u{9}[2001:db8::1%eth0]:443",
            Some("2001:db8::/64"),
        ),
        (
            Trust::Hops(1),
            xff,
            "10.0.0.1:80",
            "::ffff:203.0.113.7",
            client,
        ),
        (Trust::Hops(1), xff, "10.0.0.1:80", &garbage, None),
        (
            Trust::Hops(1),
            forwarded,
            "10.0.0.1:80",
            "for=1.1.1.1|for=\"[2001:db8::1]:80\";by=x",
            Some("2001:db8::/64"),
        ),
        (
            Trust::Hops(1),
            forwarded,
            "10.0.0.1:80",
            "for=1.1.1.1, for=unknown",
            None,
        ),
        (Trust::Hops(1), forwarded, "10.0.0.1:80", &quotes, None),
        (
            networks(),
            xff,
            "10.0.0.1:80",
            "1.1.1.1, 203.0.113.7, 10.0.0.2",
            client,
        ),
        // A client that poses as a proxy.
        (
            networks(),
            xff,
            "10.0.0.1:80",
            "10.9.9.9, 203.0.113.7",
            client,
        ),
        // All are trusted.
        (
            networks(),
            xff,
            "10.0.0.1:80",
            "10.0.0.3, 10.0.0.2",
            Some("10.0.0.3"),
        ),
        (networks(), xff, "10.0.0.1:80", "", Some("10.0.0.1")),
        (networks(), xff, "[fd00::1]:80", "203.0.113.7", client),
        (
            networks(),
            xff,
            "[::ffff:10.0.0.1]:80",
            "203.0.113.7",
            client,
        ),
        (
            networks(),
            xff,
            "10.0.0.1:80",
            "1.1.1.1, nonsense, 10.0.0.2",
            None,
        ),
        // No chain of proxies is longer than 32.
        (networks(), xff, "10.0.0.1:80", &at_most, client),
        (networks(), xff, "10.0.0.1:80", &more, None),
        (networks(), xff, "10.0.0.1:80", &endless, None),
        (
            networks(),
            forwarded,
            "10.0.0.1:80",
            "for=1.1.1.1, for=203.0.113.7, for=\"10.0.0.2:80\"",
            client,
        ),
        (
            networks(),
            forwarded,
            "10.0.0.1:80",
            "for=\"evil, for=203.0.113.7",
            client,
        ),
        (networks(), forwarded, "10.0.0.1:80", "for=_hidden", None),
    ] {
        let lines: Vec<&str> = entries.split('|').filter(|line| !line.is_empty()).collect();
        let shown = &entries[..entries.len().min(60)];
        assert_eq!(
            header(trust.clone(), peer, &lines).as_deref(),
            expected,
            "{trust:?}, {peer}: {shown}"
        );
    }
}

#[test]
fn an_entry_is_an_address_with_or_without_a_port_brackets_quotes_and_a_zone() {
    for (line, expected) in [
        (
            "192.0.2.1, 192.0.2.1:4711, \"192.0.2.1:4711\", 192.0.2.1:_hidden",
            Some("192.0.2.1"),
        ),
        (
            "::ffff:192.0.2.1, [::ffff:c000:201]:80, \"[::ffff:192.0.2.1%1]\"",
            Some("192.0.2.1"),
        ),
        (
            "2001:db8::1, 2001:DB8::1, [2001:db8::1], \"[2001:db8::1]:4711\", [2001:db8::1]:_x",
            Some("2001:db8::/64"),
        ),
        ("fe80::1%eth0, [fe80::1%25eth0]:80", Some("fe80::/64")),
        ("::1", Some("::/64")),
        (
            "unknown, _hidden, _hidden:80, example.com, \"\", \", \"192.0.2.1, 192.0.2.1\", \"192.0.2.\\1\"",
            None,
        ),
        (
            "192.0.2, 192.0.2.256, 192.0.2.01, 192.0.2.1:, 192.0.2.1:123456, 192.0.2.1:80:80, 192.0.2.1:_",
            None,
        ),
        (
            "[2001:db8::1, 2001:db8::1], [2001:db8::1]80, [2001:db8::1]:, [192.0.2.1], [[::1]], [], []:80",
            None,
        ),
        (
            "2001:db8::1%, [fe80::1%], fe80::1%a b, :, ::1::, 192.0.2.1 192.0.2.2, 192.0.2.1\u{e9}",
            None,
        ),
    ] {
        let texts: Vec<&str> = line.rsplit(", ").collect();
        for (text, found) in texts.iter().zip(entries(xff, line, texts.len())) {
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}

#[test]
fn elements_of_forwarded_are_read_from_the_right() {
    const ONE: Option<&str> = Some("192.0.2.1");
    for (line, expected) in [
        (
            "for=192.0.2.2, for=192.0.2.1;proto=http;by=203.0.113.43",
            &[ONE, Some("192.0.2.2")][..],
        ),
        (
            "For=\"[2001:db8:cafe::17]:4711\"",
            &[Some("2001:db8:cafe::/64")],
        ),
        // No space around the equals sign.
        ("by=\"a,b;for=192.0.2.9\"; FOR = 192.0.2.1", &[None]),
        ("by=\"a,\\\";for=192.0.2.9\";FOR=192.0.2.1 ,, ", &[ONE]),
        ("for=unknown, for=_hidden, for=\"_x:80\"", &[None; 3]),
        (
            "proto=https, for=192.0.2.1;for=192.0.2.2, for, ;",
            &[None; 4],
        ),
        // An open quote hides nothing to its right.
        ("for=\"evil, for=192.0.2.1", &[ONE, None]),
        ("for=192.0.2.7, for=\"evil, for=192.0.2.1", &[ONE, None]),
        ("for=\"\\\", for=192.0.2.1", &[ONE, None]),
    ] {
        let found = entries(forwarded, line, expected.len() + 1);
        assert!(
            found
                .iter()
                .map(Option::as_deref)
                .eq(expected.iter().copied().chain([None])),
            "{line}: {found:?}"
        );
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
    let (most, more, garbage) = ("x".repeat(256), "x".repeat(257), "x".repeat(1_000_000));
    let field = Header::new(HeaderName::from_static("x-api-key"));
    for (values, expected) in [
        (&[most.as_str()][..], Some(most.as_str())),
        (&[more.as_str()], None),
        (&[garbage.as_str()], None),
        (&["a", "b"], None),
    ] {
        let lines: Vec<_> = values.iter().map(|value| ("x-api-key", *value)).collect();
        assert_eq!(
            key(&field, &request("10.0.0.1:80", &lines)).as_deref(),
            expected
        );
    }
}

/// The rule in other words: the list is the peer after the lines of the field, split at commas, and trust takes hops from its end.
fn expected_key(trust: &Trust, peer: IpAddr, entries: &[Option<IpAddr>]) -> Option<IpAddr> {
    match trust {
        Trust::Hops(0) => Some(peer),
        Trust::Hops(hops) => entries.iter().rev().nth(hops - 1).copied().flatten(),
        Trust::Networks(networks) => {
            let mut client = peer;
            for entry in entries.iter().rev().copied().chain([None]).enumerate() {
                let trusted = networks.iter().any(|network| network.contains(&client));
                match entry {
                    _ if !trusted => return Some(client),
                    (i, _) if i == entries.len() => return Some(client),
                    (_, Some(address)) => client = address,
                    (_, None) => return None,
                }
            }
            None
        }
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::from([10, a, b, c])),
        any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical()),
    ]
}

/// An entry as a proxy or a client might write it, and the address in it.
fn entry() -> impl Strategy<Value = (String, Option<IpAddr>)> {
    let written = (address(), 0..4_u8, any::<u16>()).prop_map(|(address, form, port)| {
        let text = match (address, form) {
            (IpAddr::V4(address), 0) => format!("{address}"),
            (IpAddr::V4(address), 1) => format!("{address}:{port}"),
            (IpAddr::V4(address), _) => format!("::ffff:{address}"),
            (IpAddr::V6(address), 0) => format!("{address}"),
            (IpAddr::V6(address), 1) => format!("[{address}]:{port}"),
            (IpAddr::V6(address), 2) => format!("[{address}%eth0]"),
            (IpAddr::V6(address), _) => format!("[{address}]"),
        };
        (text, Some(address))
    });
    prop_oneof![4 => written, 1 => "[g-z_ ]{1,9}[!-+]".prop_map(|text| (text, None))]
}

fn trust() -> impl Strategy<Value = Trust> {
    prop_oneof![(0..4_usize).prop_map(Trust::Hops), Just(networks())]
}

fn header_value() -> impl Strategy<Value = HeaderValue> {
    let tokens = "([0-9a-fA-F:.,;=\\[\\]\"\\\\ %_-]|for=|unknown|10\\.0\\.0\\.1|, ){0,40}";
    let bytes = prop::collection::vec(any::<u8>(), 0..60);
    let valid = |value: Result<HeaderValue, _>| value.ok();
    prop_oneof![
        tokens.prop_filter_map("a value", move |text| valid(HeaderValue::from_str(&text))),
        bytes.prop_filter_map("a value", move |bytes| valid(HeaderValue::from_bytes(
            &bytes
        ))),
    ]
}

proptest! {
    /// The proxies' part alone determines the key, regardless of the client's part in front.
    #[test]
    fn the_key_follows_the_rule(
        trust in trust(),
        peer in address(),
        entries in prop::collection::vec(entry(), 0..6),
        breaks in prop::collection::vec(any::<bool>(), 6),
    ) {
        let mut lines = vec![String::new()];
        for ((text, _), line_break) in entries.iter().zip(breaks) {
            let line = lines.last_mut().unwrap();
            if line.is_empty() {
                line.push_str(text);
            } else if line_break {
                lines.push(text.clone());
            } else {
                *line += &format!(", {text}");
            }
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let parsed: Vec<Option<IpAddr>> = entries.iter().map(|(_, address)| *address).collect();
        let request = request(&SocketAddr::new(peer, 80).to_string(), &lines.iter().map(|line| ("x-forwarded-for", *line)).collect::<Vec<_>>());
        let found = ClientAddress::x_forwarded_for(trust.clone()).address(&RequestHead::from(&request));
        prop_assert_eq!(found, expected_key(&trust, peer.to_canonical(), &parsed));
    }

    /// A client's text to the left of the proxies' entries has no effect.
    #[test]
    fn what_the_client_writes_changes_no_key(evil in prop::collection::vec(header_value(), 0..4), same_line in any::<bool>()) {
        let ends = ["203.0.113.7", "for=203.0.113.7"];
        for (name, end) in ["x-forwarded-for", "forwarded"].into_iter().zip(ends) {
            for (trust, end) in [(Trust::Hops(1), end.to_owned()), (Trust::Hops(2), format!("{end}, {}", end.replace("203.0.113.7", "10.0.0.2"))), (networks(), end.to_owned())] {
                let mut request = request("10.0.0.1:80", &[]);
                let mut evil = evil.clone();
                let last = evil.pop().filter(|_| same_line);
                for line in evil {
                    request.headers_mut().append(HeaderName::from_static(name), line);
                }
                let line = [last.as_ref().map_or(&b""[..], HeaderValue::as_bytes), b",", end.as_bytes()].concat();
                request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_bytes(&line).unwrap());
                let extractor = if name == "forwarded" { ClientAddress::forwarded(trust) } else { ClientAddress::x_forwarded_for(trust) };
                prop_assert_eq!(key(&extractor, &request).unwrap(), "203.0.113.7");
            }
        }
    }

    /// No header makes an extractor panic, and what it finds is an address that a trusted end of the list contains.
    #[test]
    fn no_header_panics(values in prop::collection::vec(header_value(), 0..4), trust in trust(), peer in address()) {
        let mut request = request(&SocketAddr::new(peer, 80).to_string(), &[]);
        for value in &values {
            for name in ["x-forwarded-for", "forwarded", "x-api-key", "host"] {
                request.headers_mut().append(HeaderName::from_static(name), value.clone());
            }
        }
        let head = RequestHead::from(&request);
        for found in [ClientAddress::x_forwarded_for(trust.clone()).address(&head), ClientAddress::forwarded(trust).address(&head)] {
            prop_assert!(found.is_none_or(|address| !matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())));
        }
        let _ = head.host();
        let api_key = Header::new(HeaderName::from_static("x-api-key")).key(&head);
        if let Some(found) = api_key {
            prop_assert!(values.len() == 1 && found.as_ref() == values[0].as_bytes());
        }
    }
}
