//! Clients in Python: one for gRPC that shares no code with the server, and the one in `clients/python`.

use std::process::Command;
use std::thread;

use testbed::server::Server as Redis;

use crate::program::program;
use crate::server::Server;
use crate::tools;

const CONFIG: &str = "
domain: d
descriptors:
- { key: user, rate_limit: { unit: hour, requests_per_unit: 100, name: per user } }
- { key: site, rate_limit: { unit: hour, requests_per_unit: 2 } }
";

#[test]
fn a_grpc_client_in_python_is_answered() {
    let server = Server::start(CONFIG, &[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grpc_client.py");
    let out = Command::new(tools::python())
        .arg(script)
        .arg(server.grpc.to_string())
        .output()
        .unwrap();
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(out.status.success(), "{}\n{}", text[0], text[1]);
}

#[test]
fn the_client_in_python_survives_its_servers() {
    let redis = Redis::start().unwrap();
    let test = |store: &str| {
        let mut tests = Command::new(tools::python());
        tests
            .args(["-B", "-W", "ignore::ResourceWarning", "-m", "unittest"])
            .current_dir(tools::CLIENT);
        tests
            .env("LIMITER_SERVER", program())
            .env("LIMITER_STORE", store)
            // A slow call on a busy machine would be an outage.
            .env("LIMITER_STORE_TIMEOUT", "20s");
        let out = tests.output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success() && text.contains("Ran ") && !text.contains("Ran 0 tests"),
            "{store}: {text}"
        );
    };
    thread::scope(|scope| {
        scope.spawn(|| test("memory"));
        scope.spawn(|| test(&redis.url()));
    });
}
