//! The settings of the client.

use std::path::PathBuf;

use http::{HeaderName, HeaderValue};

use super::messages::Node;

/// Where the rules come from, and who asks for them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The control plane's host and port.
    pub server: String,
    /// The identity of this server.
    pub node: Node,
    /// Further header fields of the requests.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The files for TLS; without them, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Whether the server starts even if no rules arrive soon.
    pub starts_without_rules: bool,
}

/// The files for TLS to the control plane, in PEM. They are read for each connection.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The authorities that must have signed the control plane's certificate.
    pub ca: PathBuf,
    /// The certificate chain of this server, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in the control plane's certificate, if it is not the host.
    pub name: Option<String>,
}
