//! `limiter-server check`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use limiter_server::check::check;

use crate::ask::rows;
use crate::client::until;
use crate::program::program;
use crate::server::Server;

/// Whether the configuration is valid, the output, and the errors.
fn run(path: &Path) -> (bool, String, String) {
    let mut out = Vec::new();
    let mut errors = Vec::new();
    let valid = check(path, false, &mut out, &mut errors).unwrap();
    let text = |bytes| {
        String::from_utf8(bytes)
            .unwrap()
            .replace(&format!("{}/", path.parent().unwrap().display()), "")
    };
    (valid, text(out), text(errors))
}

#[test]
fn rules_are_a_table_and_errors_have_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let valid = "domain: d
descriptors:
- {key: a, rate_limit: {policy: '5/10s, 100/1h', counting: attempts}, shadow_mode: true}
- {key: b, value: ä, rate_limit: {unlimited: true}, descriptors: [{key: c}]}
- {key: b, rate_limit: {unit: day, requests_per_unit: 0}, quota_mode: true}
- {key: c, rate_limit: {unit: day, requests_per_unit: 010}}
- {key: \"a\\nb\", value: \"\\e[31m\", rate_limit: {unlimited: true}}
";
    fs::write(&path, valid).unwrap();
    let table = "\
domain  rule             limit                                          position
d       a                5/10s, 100/1h, counting attempts, shadow mode  limits.yaml:3:3
d       b=ä              unlimited                                      limits.yaml:4:3
d       b=ä,c            exempt                                         limits.yaml:4:67
d       b                deny, quota mode                               limits.yaml:5:3
d       c                8/1d                                           limits.yaml:6:3
d       a\\nb=\\u{1b}[31m  unlimited                                      limits.yaml:7:3
";
    let (passed, out, errors) = run(&path);
    assert_eq!((passed, &*out, &*errors), (true, table, ""));
    // The variables of a container are the server's.
    let mut program = Command::new(program());
    program.arg("check").arg(&path);
    for (name, value) in [("LIMITER_STORE", "x"), ("LIMITER_TLS_CERT", "/none")] {
        let output = program.env(name, value).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{name}");
    }

    fs::write(
        &path,
        "domain: d\ndescriptors: [{key: a, rate_limit: {}, x: 1}]",
    )
    .unwrap();
    let (passed, out, errors) = run(&path);
    let first = "limits.yaml:2:36: expected `requests_per_unit`, `policy` or `unlimited: true`\nlimits.yaml:2:36: expected `unit`";
    assert!(
        !passed && out.is_empty() && errors.starts_with(first),
        "{errors}"
    );
}

#[test]
fn a_lease_that_has_only_its_price_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    // A limit, and the problem with the share of the rate that a key at its limit admits.
    let cases = "
        policy: 100000/1m+1s =>
        policy: 100000/1m =>
        policy: 100000/59s+1s => the lease is long: 98 %
        unit: second, requests_per_unit: 100, lease: 1s => the lease is long: 50 %
        policy: 100000/10m+10m => the lease is long: 50 %
        policy: 10/1m+1s => the lease is never used: 98 %
        policy: '5/1s, 100000/1m+1s' => the lease is never used: 98 %
    ";
    for (limit, expected) in rows(cases) {
        let config = format!("domain: d\ndescriptors:\n- {{key: a, rate_limit: {{{limit}}}}}\n");
        fs::write(&path, &config).unwrap();
        let (passed, _, errors) = run(&path);
        assert!(passed);
        let Some((problem, share)) = expected.split_once(": ") else {
            assert_eq!(errors, "", "{limit}");
            continue;
        };
        let start = format!("warning: limits.yaml:3:3: {problem}: ");
        let end = format!(", a key at its limit admits {share} of its rate\n");
        let is_expected = errors.starts_with(&start) && errors.ends_with(&end);
        assert!(is_expected, "{limit}: {errors}");
    }
    // In memory, no lease is used.
    let config = "{domain: d, descriptors: [{key: a, rate_limit: {policy: 1000/1m+1s}}]}";
    let server = Server::start(config, &[]);
    assert_eq!(
        server.logged("the lease is never used: the store is in memory"),
        1
    );
    server.configure(&config.replace("+1s", ""));
    server.until_logged("from 1000/1m+1s to 1000/1m: a window may exceed its maximum");
    server.configure(&config.replace("1m+1s", "61s"));
    until("the change is seen", || {
        server.logged("reloaded").checked_sub(2)
    });
    server.configure(config);
    until("the change is seen", || {
        server.logged("reloaded").checked_sub(3)
    });
    assert_eq!(server.logged("may exceed its maximum"), 1);
}

#[test]
fn what_is_not_read_is_named_and_long_texts_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("conf.d");
    fs::create_dir_all(path.join("more.yaml")).unwrap();
    fs::create_dir(path.join("..data")).unwrap();
    for file in ["a.yaml", "b.yaml~", "c", ".hidden"] {
        let value = "x".repeat(65_536);
        fs::write(
            path.join(file),
            format!("{{domain: d, descriptors: [{{key: k, value: {value}}}]}}"),
        )
        .unwrap();
    }
    let (passed, out, errors) = run(&path);
    assert!(passed && out.len() > 65_536);
    // More than a pipe holds.
    let mut command = Command::new(program());
    command.arg("check").arg(&path).stdout(Stdio::piped());
    let mut check = command.spawn().unwrap();
    drop(check.stdout.take());
    assert_eq!(check.wait().unwrap().code(), Some(0));
    let ignored = ["b.yaml~", "c", "more.yaml"]
        .map(|file| format!("warning: conf.d/{file}: ignored, expected a file *.yaml or *.yml\n"));
    assert_eq!(errors, ignored.concat());
}
