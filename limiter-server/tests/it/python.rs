//! A client in Python, which shares no code with the server.

use std::process::Command;

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
    let out = Command::new(tools::python()).arg(script).arg(server.grpc.to_string()).output().unwrap();
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(out.status.success(), "{}\n{}", text[0], text[1]);
}
