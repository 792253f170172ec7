//! Rules by xDS, from a control plane with gRPC's own implementation of the protocol.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::iter;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use limiter_server::migration::Pod;
use limiter_server::store::Location;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::write_certificates;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::ask::rows;
use crate::client::{get, until};
use crate::program::{self, Program};
use crate::tools;

/// A control plane, which is killed at the end of the test.
struct ControlPlane {
    port: u64,
    process: Child,
    snapshots: ChildStdin,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl ControlPlane {
    fn start(arguments: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control_plane.py");
        let mut command = Command::new(tools::python());
        command.arg(script).args(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        let port = lines.next().expect("the control plane ended")["port"].as_u64();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&requests);
        thread::spawn(move || lines.for_each(|request| noted.lock().unwrap().push(request)));
        Self {
            port: port.unwrap(),
            snapshots: process.stdin.take().unwrap(),
            process,
            requests,
        }
    }

    fn send(&mut self, snapshot: &Value) {
        writeln!(self.snapshots, "{snapshot}").unwrap();
    }

    /// Sends rules, and waits until the server accepts them.
    fn set(&mut self, version: &str, configs: &Value) {
        self.send(&json!({ "version": version, "configs": configs }));
        self.until(|request| request["version"] == version);
    }

    /// Waits for a request, and returns it.
    fn until(&self, is_expected: impl Fn(&Value) -> bool) -> Value {
        until("the server responds", || {
            let requests = self.requests.lock().unwrap();
            requests
                .iter()
                .find(|request| is_expected(request))
                .cloned()
        })
    }

    /// Returns a command that starts a server with rules from here.
    fn client(&self) -> Command {
        let mut command = command();
        command.env("CONFIG_TYPE", "GRPC_XDS_SOTW").env(
            "CONFIG_GRPC_XDS_SERVER_URL",
            format!("localhost:{}", self.port),
        );
        command
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a command that starts a server on free ports, without files.
fn command() -> Command {
    let (mut command, _) = program::command("");
    command.env_remove("LIMITER_CONFIG");
    command
}

fn start(command: Command) -> Program {
    Program::run(command, TempDir::new().unwrap())
}

fn limit(requests: u64) -> Value {
    json!({ "unit": "HOUR", "requests_per_unit": requests })
}

/// Returns the rules of the domain `d` that limit each user to so many requests per hour.
fn users(requests: u64) -> Value {
    json!([{ "name": "a", "domain": "d", "descriptors": [{ "key": "user", "rate_limit": limit(requests) }] }])
}

#[test]
fn bad_rules_are_refused_with_their_reason_and_the_old_ones_remain() {
    let began = Instant::now();
    let mut plane = ControlPlane::start(&["0"]);
    plane.send(&json!({ "version": "first", "configs": users(1) }));
    let mut command = plane.client();
    command
        .env("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit")
        .env("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,rack=7")
        .env("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-test:yes");
    let server = start(command);
    let first = plane.until(|request| request["nonce"] == "");
    let node = json!(["envoy-ratelimit", { "zone": "a", "rack": "7" }, "yes", ""]);
    let fields = ["node", "metadata", "header", "version"].map(|field| &first[field]);
    assert_eq!(json!(fields), node);
    assert_eq!([(); 2].map(|()| server.ask("user", "ann")), [200, 429]);
    let rules = server.admin("/rules");
    assert!(rules.contains(r#""where":"xds/a""#), "{rules}");

    // Descriptors of the domain `d`, or a whole snapshot.
    let table = r#"
        [{"value": "x"}] => xds/b: expected `key` with a text
        [{"key": "a*"}] => xds/b: expected a key without `*`: wildcards are for values
        [{"key": "user", "rate_limit": {"requests_per_unit": 1}}] => xds/b: user: expected second, minute, hour, day, week, month or year, found "UNKNOWN"
        [{"key": "user", "rate_limit": {"unit": 9}}] => found "9"
        [{"key": "user", "rate_limit": {"unit": "DAY", "unlimited": true}}] => xds/b: user: `unit` cannot be combined with `unlimited`
        [{"key": "user", "rate_limit": {"unit": "DAY", "name": "n", "replaces": [{"name": "n"}]}}] => xds/b: user: expected the name of another rule
        [{"key": "user", "rate_limit": {"unit": "DAY", "replaces": [{}]}}] => xds/b: user: expected `name` with a text
        [{"key": "site", "descriptors": [{"key": "user", "value": "a"}, {"key": "user", "value": "a"}]}] => xds/b: site: defined twice: user=a
        [{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}] => and 2 more errors
        {"configs": [{"name": "b"}]} => xds/b: expected `domain` with a text
        {"configs": [{"name": "b", "domain": "e"}, {"name": "c", "domain": "e"}]} => xds/c: the domain "e" is already defined at xds/b
        {"type": "type.googleapis.com/other"} => RateLimitConfig, found "type.googleapis.com/other"
        {"resources": [{"type": "other", "value": ""}]} => found "other"
        {"resources": [{"value": ""}, {"value": "/w=="}]} => a resource of 1 B: failed to decode Protobuf message
        {"configs": [{"name": "b\nx", "domain": "e", "descriptors": [{"key": "k\u001b", "rate_limit": {}}]}]} => xds/b\nx: k\u{1b}: expected second
    "#;
    let mut refused = 0.0;
    for (given, reason) in rows(table) {
        refused += 1.0;
        let given: Value = serde_json::from_str(given).unwrap();
        let mut snapshot = match given.is_array() {
            true => json!({ "configs": [{ "name": "b", "domain": "d", "descriptors": given }] }),
            false => given,
        };
        snapshot["version"] = json!(reason);
        plane.send(&snapshot);
        let refusal = plane.until(|request| request["error"].as_str().unwrap().contains(reason));
        let fields = ["version", "code"].map(|field| &refusal[field]);
        assert_eq!(json!(fields), json!(["first", 3]), "{refusal}");
        assert_eq!(server.ask("user", "ann"), 429, "{reason}");
    }
    server.until_logged("a resource of 1 B");
    // A long refusal would end the stream. Resources in another order are the same ones.
    let long =
        |i: u32| json!({ "key": "k".repeat(1_000_000), "value": i.to_string(), "rate_limit": {} });
    let long: Vec<_> = (0..5).map(long).collect();
    let mut configs = vec![json!({ "name": "b", "domain": "d", "descriptors": long })];
    configs.extend((0..8).map(|i| json!({ "domain": i.to_string() })));
    plane.send(&json!({ "version": "long", "configs": configs }));
    until("the refusal is repeated", || {
        let requests = plane.requests.lock().unwrap();
        let refusals = requests.iter().filter_map(|it| it["error"].as_str());
        (refusals.filter(|it| it.starts_with("xds/b: kkk")).count() == 3).then_some(())
    });
    assert_eq!(server.reloads("failure"), Some(refused + 1.0));
    // The control plane repeats what was refused at once, and is slowed down.
    let requests = plane.requests.lock().unwrap().len() as u64;
    let most = 30 + began.elapsed().as_secs();
    assert!(requests < most, "{requests} of {most} requests");
    assert_eq!(server.metric("limiter_server_config_valid"), Some(0.0));

    // Of good rules, unknown fields are ignored, an older version is not refused, and every change applies.
    let rule = json!({ "key": "user", "unknown": "x", "rate_limit": limit(2), "metadata": { "a": [1, null, "x"] } });
    plane.set(
        "0",
        &json!([{ "name": "b\ny", "domain": "d", "descriptors": [rule] }]),
    );
    assert!(server.admin("/rules").contains(r#""where":"xds/b\\ny""#));
    assert_eq!([(); 2].map(|()| server.ask("user", "ann")), [200, 429]);
    assert_eq!(server.metric("limiter_server_config_valid"), Some(1.0));
    plane.set("none", &json!([]));
    assert_eq!(server.ask("user", "ann"), 200);
    let user = |i: u32| json!({ "key": "user", "value": i.to_string(), "rate_limit": limit(1) });
    let descriptors: Vec<_> = (0..10_000).map(user).collect();
    plane.set(
        "large",
        &json!([{ "domain": "d", "descriptors": descriptors }]),
    );
    assert_eq!([(); 2].map(|()| server.ask("user", "9999")), [200, 429]);
}

#[test]
fn a_start_waits_for_rules_unless_it_is_forced() {
    let mut plane = ControlPlane::start(&["0"]);
    let forced = ["true", "false"].map(|healthy| {
        let mut forced = plane.client();
        forced
            .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
            .env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", healthy);
        start(forced)
    });
    for (forced, health) in forced
        .iter()
        .zip([(503, "no rules\n"), (200, "OK, no rules\n")])
    {
        assert_eq!(forced.health(), (health.0, health.1.to_owned()));
        assert_eq!([(); 2].map(|()| forced.ask("user", "ann")), [200, 200]);
        assert_eq!(forced.logged("started without rules"), 1);
    }

    let command = plane.client();
    let waiting = thread::spawn(move || start(command));
    let mut ended = plane.client().spawn().unwrap();
    until("all ask for rules", || {
        (plane.requests.lock().unwrap().len() == 4).then_some(())
    });
    program::signal(&ended, "TERM");
    assert_eq!(ended.wait().unwrap().code(), Some(0));
    assert!(!waiting.is_finished());
    plane.send(&json!({ "version": "1", "configs": users(1) }));
    let waited = waiting.join().unwrap();
    assert_eq!([(); 2].map(|()| waited.ask("user", "ann")), [200, 429]);
    for forced in forced {
        until("the rules arrive", || {
            (forced.health() == (200, "OK\n".to_owned())).then_some(())
        });
        assert_eq!([(); 2].map(|()| forced.ask("user", "ann")), [200, 429]);
    }
}

#[test]
fn rules_survive_their_control_plane_and_change_without_a_gap() {
    let mut plane = ControlPlane::start(&["0"]);
    plane.send(&json!({ "version": "7", "configs": users(1) }));
    let server = start(plane.client());
    assert_eq!([(); 2].map(|()| server.ask("user", "ann")), [200, 429]);
    plane.stop();
    until("the server notices twice", || {
        (server.logged("next attempt") > 1).then_some(())
    });
    assert_eq!(server.ask("user", "ann"), 429);

    // The new process counts its versions from the beginning. The same rules are no change.
    let mut plane = ControlPlane::start(&[&plane.port.to_string()]);
    plane.set("1", &users(1));
    assert_eq!(server.reloads("success"), Some(1.0));
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let began = Instant::now();
            for i in 0..200 {
                let mut rules = users(1);
                rules[0]["descriptors"][0]["rate_limit"]["name"] = json!(format!("change {i}"));
                plane.set(&format!("change {i}"), &rules);
            }
            println!("a change takes {:?}", began.elapsed() / 200);
        });
        while !changes.is_finished() {
            assert_eq!(server.ask("user", "ann"), 429);
        }
    });
    assert_eq!(server.reloads("success"), Some(201.0));
}

#[test]
fn files_refine_rules() {
    let mut plane = ControlPlane::start(&["0"]);
    let refined = |limit: &str| {
        let other = "{ key: other, rate_limit: { policy: 1/1s } }";
        format!("domain: d\ndescriptors:\n- {{ key: user, rate_limit: {limit} }}\n- {other}\n")
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("limits.yaml");
    let mut rules = users(9);
    rules[0]["descriptors"][0]["rate_limit"]["name"] = json!("n");
    rules[0]["descriptors"][0]["quota_mode"] = json!(true);
    plane.send(&json!({ "version": "1", "configs": rules }));
    let text = refined("{ policy: '2/30s, 3/30d', counting: attempts }");
    fs::write(&path, text).unwrap();
    let mut command = plane.client();
    command.arg("--config").arg(&path);
    let server = Program::run(command, folder);
    let shown = |server: &Program| {
        serde_json::from_str::<Value>(&server.admin("/rules")).unwrap()["rules"][0].clone()
    };
    let place = format!("xds/a, refined at {}:3:3", path.display());
    let rule = shown(&server);
    let fields = ["limits", "attempts", "quota", "name", "where"].map(|field| &rule[field]);
    let expected = json!([["2/30s", "3/30d"], true, true, "n", place]);
    assert_eq!(json!(fields), expected);
    let unused = ":4:3: without effect, because no rule \"other\" of the domain \"d\" has arrived";
    server.until_logged(unused);
    assert!(server.admin("/page/state").contains("without effect"));

    // Each source keeps its last rules without errors, and errors remain visible.
    let valid = |expected| {
        until("the files are read", || {
            server
                .metric("limiter_server_config_valid")
                .filter(|it| *it == expected)
        })
    };
    fs::write(&path, refined("{ policy: 0/1s }")).unwrap();
    valid(0.0);
    plane.set("2", &users(8));
    assert_eq!(
        json!([shown(&server)["limits"], shown(&server)["quota"]]),
        json!([["2/30s", "3/30d"], false])
    );
    valid(0.0);
    fs::write(&path, refined("{ policy: 4/1m }")).unwrap();
    valid(1.0);
    assert_eq!(shown(&server)["limits"], json!(["4/1m"]));
    plane.send(&json!({ "version": "3", "configs": [{ "name": "a" }] }));
    valid(0.0);
    fs::write(&path, refined("{ policy: 5/1m }")).unwrap();
    until("the files are read", || {
        (shown(&server)["limits"] == json!(["5/1m"])).then_some(())
    });
    valid(0.0);
    assert!(
        server
            .admin("/page/state")
            .contains("xds/a: expected `domain`")
    );
    plane.set("4", &users(8));
    valid(1.0);

    // A refinement is a limit and nothing else.
    for (text, expected) in rows(
        "rate_limit: { unit: day, name: n } => : expected one of the fields unit, requests_per_unit
         rate_limit: { unit: day }, shadow_mode: true => : expected one of the fields key, value, rate_limit, descriptors, found
         metadata: null => :1:39: expected one of the fields
         value: x => :1:27: expected `rate_limit`",
    ) {
        server.configure(&format!("{{domain: d, descriptors: [{{key: user, {text}}}]}}"));
        let (code, errors) = program::failed(plane.client().arg("--config").arg(&path));
        assert!(code == Some(1) && errors.contains(expected), "{errors}");
        let check = || {
            let mut check = Command::new(program::program());
            check.arg("check").arg(&path);
            check
        };
        let (code, errors) = program::failed(check().arg("--refinements"));
        assert!(code == Some(1) && errors.contains(expected), "{errors}");
        assert_eq!(program::failed(&mut check()), (Some(0), String::new()));
    }
}

/// The variables that Envoy Gateway 1.9 sets for its rate limit service, with the folder of the certificates.
fn gateway(port: u64, certificates: &str) -> Vec<(String, String)> {
    let variables = format!(
        "RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false LOG_LEVEL=info
         USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=localhost:{port}
         CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT={certificates}/server.pem
         GRPC_SERVER_TLS_KEY={certificates}/server.key GRPC_SERVER_TLS_CA_CERT={certificates}/ca.pem
         CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT={certificates}/client.pem
         CONFIG_GRPC_XDS_CLIENT_TLS_KEY={certificates}/client.key CONFIG_GRPC_XDS_SERVER_TLS_CACERT={certificates}/ca.pem
         FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp USE_PROMETHEUS=true PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml"
    );
    variables.split_whitespace().map(pair).collect()
}

fn pair(pair: &str) -> (String, String) {
    let (name, value) = pair.split_once('=').unwrap();
    (name.to_owned(), value.to_owned())
}

#[tokio::test]
async fn the_environment_of_envoy_gateway_starts_the_server() {
    let folder = TempDir::new().unwrap();
    write_certificates(folder.path());
    let certificates = folder.path().to_str().unwrap().to_owned();
    let mut plane = ControlPlane::start(&["0", &certificates]);
    let redis = testbed::server::Server::start().unwrap();
    let mut command = command();
    command
        .envs(gateway(plane.port, &certificates))
        .env("REDIS_URL", format!("127.0.0.1:{}", redis.port()))
        .env("PROMETHEUS_ADDR", "127.0.0.1:0");
    // No request is admitted before the rules are there.
    plane.send(&json!({ "version": "1", "configs": users(1) }));
    let server = Program::run(command, folder);
    assert_eq!([(); 2].map(|()| server.ask("user", "ann")), [200, 429]);
    assert_eq!(get(server.http, "/healthcheck"), (200, "OK\n".to_owned()));
    let ca = fs::read(format!("{certificates}/ca.pem")).unwrap();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    let endpoint = Endpoint::try_from(format!("https://localhost:{}", server.grpc.port())).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    assert!(redis.command::<usize>(&["DBSIZE"]).unwrap() > 0);
    let lines = server.log.lock().unwrap().clone();
    let metrics = lines
        .iter()
        .find_map(|line| line.split_once("metrics 127.0.0.1:"));
    let port: u16 = metrics.unwrap().1.parse().unwrap();
    for (path, expected) in [("/metrics", 200), ("/", 404), ("/rules", 404)] {
        assert_eq!(
            get(([127, 0, 0, 1], port).into(), path).0,
            expected,
            "{path}"
        );
    }
    assert_eq!(server.logged("has no effect"), 0, "{lines:?}");

    // Certificates are read for each connection.
    let port = plane.port.to_string();
    plane.stop();
    write_certificates(certificates.as_ref());
    let mut plane = ControlPlane::start(&[&port, &certificates]);
    plane.set("2", &users(1));
}

#[test]
fn an_empty_file_for_tls_is_named() {
    let certificates = TempDir::new().unwrap();
    let mut server = None;
    for (file, expected) in [
        ("ca.pem", "expected certificates in PEM, found none"),
        ("client.pem", "expected certificates in PEM, found none"),
        ("client.key", "expected a private key"),
    ] {
        write_certificates(certificates.path());
        fs::write(certificates.path().join(file), "").unwrap();
        let server = server.get_or_insert_with(|| {
            let mut command = command();
            // Nothing listens there.
            let variables = gateway(1, certificates.path().to_str().unwrap());
            command
                .envs(variables)
                .env("PROMETHEUS_ADDR", "127.0.0.1:0");
            start(command)
        });
        server.until_logged(&format!("{file}: {expected}"));
    }
}

#[test]
fn variables_mean_what_they_mean_to_envoys_service() {
    let shown = |pod: &Pod| {
        let option = |(name, value): &(&str, Option<String>)| match value {
            Some(value) => format!("{name}={value}"),
            None => (*name).to_owned(),
        };
        pod.options.iter().map(option).collect::<Vec<_>>().join(" ")
    };
    let pod = Pod::read(&gateway(18001, "/certs").into_iter().collect()).unwrap();
    let tls = "tls-cert=/certs/server.pem tls-key=/certs/server.key http-plain";
    assert_eq!(
        shown(&pod),
        format!("{tls} grpc=0.0.0.0:8081 http=0.0.0.0:8080")
    );
    assert_eq!(
        (pod.metrics.as_deref(), pod.level.as_deref()),
        (Some("0.0.0.0:9090"), Some("info"))
    );
    let settings = pod.xds.unwrap();
    assert!(settings.starts_without_rules);
    assert_eq!(
        (&*settings.server, &*settings.node.id),
        ("localhost:18001", "envoy-ratelimit")
    );

    let manifest = include_str!("../../deploy/agent-router.yaml");
    let variable = |line: &str| {
        let (name, value) = line.split_once("- { name: ")?.1.split_once(", value: ")?;
        let value = value.trim_end_matches([' ', '}']).trim_matches('"');
        Some((name.to_owned(), value.to_owned()))
    };
    let pod = Pod::read(&manifest.lines().filter_map(variable).collect()).unwrap();
    let store = "store=redis://envoy-ai-gateway-ratelimit-redis:6379";
    assert_eq!(
        shown(&pod),
        format!("grpc=0.0.0.0:8081 http=0.0.0.0:8080 {store}")
    );
    let settings = pod.xds.unwrap();
    assert!(!settings.starts_without_rules && settings.tls.is_none());
    assert_eq!(settings.node.id, "envoy-ai-gateway-ratelimit");

    for (variables, expected) in rows(
        "CONFIG_TYPE=FILE REDIS_URL=a:1 PORT=1 =>
         CONFIG_TYPE=FILE GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k =>
         CONFIG_TYPE=FILE GRPC_SERVER_USE_TLS=1 GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k => tls-cert=c tls-key=k http-plain
         CONFIG_TYPE=FILE GRPC_SERVER_USE_TLS=T GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k GRPC_CLIENT_TLS_CACERT=a GRPC_CLIENT_TLS_SAN=n => tls-cert=c tls-key=k tls-client-ca=a tls-client-name=n http-plain
         GRPC_HOST=::1 GRPC_PORT=1 HOST=h PORT=2 => grpc=[::1]:1 http=h:2
         HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true LOG_FORMAT=json => unhealthy-when=no-rules log-format=json
         REDIS_URL=r:1 REDIS_SOCKET_TYPE=tcp REDIS_AUTH=p@ss => store=redis://:p%40ss@r:1
         REDIS_URL=/r.sock => store=redis+unix:///r.sock
         REDIS_URL=/r.sock REDIS_AUTH=u:p => store=redis+unix:///r.sock?user=u&pass=p
         REDIS_URL=redis://r:1/2 REDIS_TLS=true REDIS_AUTH=u:p => store=rediss://u:p@r:1/2
         REDIS_URL=redis://u:p@r:1 REDIS_AUTH=other REDIS_TLS_CACERT=a => store=redis://u:p@r:1 store-tls-ca=a
         REDIS_URL=a:1,b:2 REDIS_TYPE=CLUSTER REDIS_TLS=t => store=rediss+cluster://a:1,b:2
         REDIS_URL=main,a:1,b:2 REDIS_TYPE=sentinel REDIS_AUTH=p REDIS_SENTINEL_AUTH=s => store=redis+sentinel://:p@a:1,b:2/main?sentinel_pass=s
         CONFIG_TYPE=OTHER => error CONFIG_TYPE: expected FILE or GRPC_XDS_SOTW, found \"OTHER\"
         CONFIG_GRPC_XDS_SERVER_URL=host => error CONFIG_GRPC_XDS_SERVER_URL: expected HOST:PORT, found \"host\"
         CONFIG_GRPC_XDS_SERVER_USE_TLS=true => error CONFIG_GRPC_XDS_SERVER_TLS_CACERT: expected a file
         CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c => error CONFIG_GRPC_XDS_CLIENT_TLS_KEY: expected a file, because CONFIG_GRPC_XDS_CLIENT_TLS_CERT is set
         CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k => error CONFIG_GRPC_XDS_CLIENT_TLS_CERT: expected a file, because CONFIG_GRPC_XDS_CLIENT_TLS_KEY is set
         CONFIG_GRPC_XDS_NODE_METADATA=a => error CONFIG_GRPC_XDS_NODE_METADATA: expected KEY=VALUE,…
         CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a\u{e9}:b => error CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: expected a header field, found \"a\u{e9}\"
         CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=secret => error CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: expected KEY:VALUE,…
         FORCE_START_WITHOUT_INITIAL_CONFIG=yes => error FORCE_START_WITHOUT_INITIAL_CONFIG: expected true or false, found \"yes\"
         GRPC_SERVER_USE_TLS=true => error GRPC_SERVER_TLS_CERT: expected a file
         LOG_LEVEL=loud => error LOG_LEVEL: expected trace, debug, info, warn, error, fatal or panic, found \"loud\"
         REDIS_URL=a:1 REDIS_TYPE=other => error REDIS_TYPE: expected SINGLE, CLUSTER or SENTINEL, found \"other\"
         REDIS_URL=a:1 REDIS_TYPE=SENTINEL => error REDIS_URL: expected the master's name and the sentinels: NAME,HOST:PORT,…
         REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true => error REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: it is not supported: use a certificate that contains the host name",
    ) {
        let pairs = variables.split_whitespace().map(pair);
        let xds = ("CONFIG_TYPE".to_owned(), "GRPC_XDS_SOTW".to_owned());
        let options = match Pod::read(&iter::once(xds).chain(pairs).collect()) {
            Ok(pod) => shown(&pod).replace("grpc=0.0.0.0:8081 http=0.0.0.0:8080", ""),
            Err(error) => format!("error {error}"),
        };
        assert_eq!(options.trim(), expected, "{variables}");
        if let Some(store) = options.split("store=").nth(1) {
            Location::parse(store.split(' ').next().unwrap()).unwrap();
        }
    }
}
