//! A real broker, in which a light customer's task overtakes a heavy customer's queue.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use limiter_testkit::server::Server;
use tempfile::TempDir;

use super::*;

/// A RabbitMQ server with its own ports and directory; it ends when it is dropped.
struct Broker {
    server: Child,
    port: u16,
    names_port: u16,
    directory: TempDir,
}

/// Names the server's binary.
const BINARY: &str = "LIMITER_RABBITMQ_SERVER";
/// Debian's package has a wrapper in the path that changes the user; this is the server itself.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

fn binary() -> PathBuf {
    let default = if PathBuf::from(DEBIAN).exists() { DEBIAN } else { "rabbitmq-server" };
    std::env::var_os(BINARY).unwrap_or_else(|| default.into()).into()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Broker {
    fn start() -> Self {
        let binary = binary();
        let directory = tempfile::tempdir().unwrap();
        let (port, names_port) = (free_port(), free_port());
        let log = std::fs::File::create(directory.path().join("output")).unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut command = Command::new(&binary);
        command.env("RABBITMQ_NODENAME", format!("limiter-{port}@localhost"));
        command.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1").env("RABBITMQ_NODE_PORT", port.to_string());
        command.env("RABBITMQ_DIST_PORT", free_port().to_string());
        command.env("ERL_EPMD_ADDRESS", "127.0.0.1").env("ERL_EPMD_PORT", names_port.to_string());
        command.env("HOME", directory.path()).env("RABBITMQ_MNESIA_BASE", path("data"));
        command.env("RABBITMQ_LOG_BASE", path("log")).env("RABBITMQ_LOGS", "-");
        command.env("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins")).env("RABBITMQ_CONFIG_FILE", path("config"));
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let server = command.spawn().unwrap_or_else(|error| {
            panic!("{} cannot be started: {error}. Install rabbitmq-server, or set {BINARY}", binary.display())
        });
        let mut broker = Self { server, port, names_port, directory };
        broker.wait();
        broker
    }

    fn wait(&mut self) {
        let until = Instant::now() + Duration::from_secs(180);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.server.try_wait().unwrap();
            if ended.is_some() || Instant::now() > until {
                let output = std::fs::read_to_string(self.directory.path().join("output"));
                panic!("the broker does not serve ({ended:?}): {}", output.unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.server.id().to_string()]).status();
        let _ = self.server.wait();
        // The server leaves the name server of its runtime behind.
        let mut names = Command::new("epmd");
        let _ = names.args(["-port", &self.names_port.to_string(), "-kill"]).stdout(Stdio::null()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_light_customer_overtakes_a_heavy_one() {
    let broker = Broker::start();
    let redis = Server::start().unwrap();
    let stores: [SharedStore; 2] =
        [Arc::new(MemoryStore::new()), Arc::new(RedisStore::connect(&redis.url()).await.unwrap())];
    for store in stores {
        let served = run(&broker.url(), store).await.unwrap();
        let place = |customer| served.iter().position(|other| other == customer);
        // The first two tasks of the batch job have the highest priority too, and came earlier.
        assert_eq!((served.len(), place("ann"), place("ben")), (62, Some(2), Some(3)), "{served:?}");
    }
}

#[test]
fn priorities_fall_with_usage() {
    assert_eq!([0, 1, 2, 9, 10, 49, 50, 1_000_000].map(priority), [3, 3, 2, 2, 1, 1, 0, 0]);
}
