//! The proxy does to a connection what it says. These tests need no quiet machine.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use limiter_testkit::server::until;
use testbed::{Network, Proxy};

/// A server that sends back what it receives, in capitals.
fn server() -> (Proxy, std::net::SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    buffer[..count].make_ascii_uppercase();
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (Proxy::start(address).unwrap(), address)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends a text and returns the answer, up to the end or to this length.
fn ask(stream: &mut TcpStream, text: &str, length: usize) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    read(stream, length)
}

fn read(stream: &mut TcpStream, length: usize) -> String {
    let mut answer = Vec::new();
    // A reset ends the answer, as the end of the stream does.
    let _ = stream.take(length as u64).read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Asserts that nothing arrives for a while.
fn assert_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    let read = stream.read(&mut [0; 1]);
    assert!(read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{read:?}");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
}

/// Asserts that the connection has been closed or reset.
fn assert_closed(stream: &mut TcpStream) {
    let read = stream.read(&mut [0; 1]);
    let closed = matches!(&read, Ok(0)) || read.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(closed, "{read:?}");
}

#[test]
fn latency_delays_each_direction_and_not_throughput() {
    let (proxy, _) = server();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "healthy", 7), "HEALTHY");
    proxy.set(Network::Latency(Duration::from_millis(100)));
    let begun = Instant::now();
    for _ in 0..200 {
        stream.write_all(b"ab").unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(read(&mut stream, 400), "AB".repeat(200));
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    // One after the other, 200 chunks would take 40 s.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn bandwidth_takes_its_time_in_each_direction() {
    let (proxy, _) = server();
    let mut stream = connect(&proxy);
    proxy.set(Network::Bandwidth(1000));
    let begun = Instant::now();
    assert_eq!(ask(&mut stream, &"x".repeat(150), 150), "X".repeat(150));
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
}

#[test]
fn what_is_held_arrives_afterwards() {
    let (proxy, _) = server();
    for network in [Network::HalfOpen, Network::HoldRequests, Network::HoldReplies] {
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, "before", 6), "BEFORE", "{network:?}");
        proxy.set(network);
        stream.write_all(b"held").unwrap();
        let mut new = connect(&proxy);
        new.write_all(b"new").unwrap();
        assert_silent(&mut stream);
        assert_silent(&mut new);
        proxy.set(Network::Healthy);
        assert_eq!((read(&mut stream, 4), read(&mut new, 3)), ("HELD".to_owned(), "NEW".to_owned()), "{network:?}");
    }
}

#[test]
fn resets_and_refusals_end_open_connections() {
    let (proxy, address) = server();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "a", 1), "A");
    proxy.set(Network::Reset);
    assert_closed(&mut stream);
    assert_closed(&mut connect(&proxy));
    proxy.set(Network::Healthy);
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "a", 1), "A");
    proxy.set(Network::Refuse);
    assert_closed(&mut stream);
    until("connections are refused", || Ok(TcpStream::connect(proxy.address()).is_err())).unwrap();
    proxy.set(Network::Healthy);
    until("connections are accepted", || Ok(TcpStream::connect(proxy.address()).is_ok())).unwrap();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "a", 1), "A");
    // A server that is gone: accepted, then closed.
    let gone = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    proxy.redirect(gone);
    assert_closed(&mut connect(&proxy));
    proxy.redirect(address);
    assert_eq!(ask(&mut connect(&proxy), "b", 1), "B");
}

#[test]
fn a_cut_forwards_only_the_given_number_of_bytes() {
    let (proxy, _) = server();
    for (network, passes) in
        [(Network::CutRequest(5), "12345"), (Network::CutReply(3), "123"), (Network::CutReply(0), "")]
    {
        proxy.set(Network::Healthy);
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, "before", 6), "BEFORE");
        proxy.set(network);
        // The answer to a request that is cut may be lost with the connection.
        let got = ask(&mut stream, "1234567", 7);
        assert!(got == passes || (network == Network::CutRequest(5) && passes.starts_with(&got)), "{network:?}: {got}");
        assert_closed(&mut stream);
    }
}
