//! The layer with axum's mock of a connection, and extractors that are chosen at run time.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use http::{HeaderName, Request};
use limiter_core::policy;
use limiter_tower::key::{ClientAddress, Constant, Header, KeyExtractor, Peer};
use limiter_tower::{LimitLayer, RequestHead};
use tower::ServiceExt;

use crate::common::{CLOSED, get, hello, rule};

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

#[test]
fn a_boxed_extractor_finds_the_keys_of_the_one_in_it() {
    let header = || Header::new(HeaderName::from_static("x-api-key"));
    let boxed = || Box::new(header()) as Box<dyn KeyExtractor>;
    let closure: Box<dyn KeyExtractor> = Box::new(|head: &RequestHead<'_>| Some(head.path().len()));
    let chain: Box<dyn KeyExtractor> = Box::new(boxed().or(ClientAddress::peer()));
    let peer = Peer("203.0.113.7:80".parse().unwrap());
    for (value, expected) in [(None, "address,203.0.113.7"), (Some("k7"), "x-api-key,k7")] {
        let mut request = Request::get("/a").extension(peer);
        if let Some(value) = value {
            request = request.header("x-api-key", value);
        }
        let request = request.body(()).unwrap();
        let key = |extractor: &dyn KeyExtractor| {
            let key = extractor.key(&RequestHead::from(&request));
            key.map(|key| String::from_utf8(key.as_ref().to_vec()).unwrap())
        };
        assert_eq!(key(&closure).as_deref(), Some("2"));
        assert_eq!(key(&boxed()).as_deref(), value);
        assert_eq!(key(&(boxed(), header())), key(&(header(), boxed())));
        assert_eq!(
            key(&boxed().or(ClientAddress::peer())).as_deref(),
            Some(expected)
        );
        // A chain has one kind, even in a box.
        let longer = Box::new(boxed().or(ClientAddress::peer())) as Box<dyn KeyExtractor>;
        assert_eq!(key(&longer.or(Constant::new("k"))), key(&chain));
    }
}
