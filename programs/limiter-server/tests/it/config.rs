//! Configuration files: what is read, and what is an error.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use limiter_core::{Counting, Limiter, Policy};
use limiter_server::config::Errors;
use limiter_server::rules::RuleSet;

use crate::ask::rows;
use crate::rules::{parse, read, store};

/// One line for each rule, in the order of the files.
fn lines(rules: &RuleSet) -> Vec<String> {
    let line = |rule: &limiter_server::rules::Rule| {
        let policy = rule.limiter().map(Limiter::policy);
        let effect = policy.map_or_else(|| rule.effect.name().to_owned(), Policy::to_string);
        let name = rule
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!(" named {name}"));
        let replaces: String = rule
            .replaces
            .iter()
            .map(|other| format!(" replaces {other}"))
            .collect();
        let attempts = policy.is_some_and(|policy| policy.counting() == Counting::Attempts);
        let flags = [
            (attempts, "attempts"),
            (rule.shadow, "shadow"),
            (rule.quota, "quota"),
            (rule.is_detailed(), "detailed"),
        ];
        let flags: String = flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, name)| format!(" [{name}]"))
            .collect();
        format!(
            "{} {}: {effect}{name}{replaces}{flags}",
            rule.domain, rule.path
        )
    };
    rules.iter().map(|rule| line(rule)).collect()
}

/// The domains of rules, sorted.
pub(crate) fn domains(rules: &RuleSet) -> Vec<String> {
    let mut domains: Vec<String> = rules
        .with_overrides()
        .map(|rule| rule.domain.clone())
        .collect();
    domains.sort();
    domains.dedup();
    domains
}

#[test]
fn files_in_the_format_of_envoys_service_are_read() {
    let expected = "\
all category=account: 4/1m replaces small replaces absent
all source=proxy,destination=small: 2/1m named small
all source=proxy,destination=banned: deny named banned
all header: 2/1m
all header,other: 3/1m
all header,other=shady: 3/1m [shadow]
all header,free: unlimited
all detail: 2/1m [detailed]
all service=one: 1/365d [quota]
metrics tenant: 10/1m [detailed]
metrics tenant=known: 20/1m
metrics route,method=GET,subject: 60/1m [detailed]
metrics file=static/*,action: 80/1m [detailed]
mail kind=newsletter,recipient: 5/1d
mail recipient: 100/1d
ours client: 5/10s, 100/1h named per client
ours login: 3/1m [attempts]
ours quota: 1000000/30d~1h
ours other quota: 1000000/30d~1h
ours merged: 1000000/30d~1h [attempts]
replaces kind=read,user=ann: 5/1s named read_limit
replaces path=/report,user=ann: 10/1s replaces read_limit
shadow service,user=a: 10/1s [shadow]
shadow service,user=b: 20/1s
edge remote_address: 10/1s
edge remote_address=192.0.2.5: deny
edge remote_address=192.0.2.6: exempt
edge path=404: 1/7d
edge version=1.10: 2/30d
internal directory: unlimited
internal search: 100/1m
databases database=orders: 300/1s
databases database=default: 500/1s
wildcards start=v*: 20/1m
wildcards path=/api/*/action: 20/1m
wildcards route=/api/*/resource/*/action: 20/1m
wildcards file=static/logo: 1/1m
wildcards file=static/*: 10/1h
wildcards file=stat*: 11/1h
wildcards file: 12/1h
wildcards file,type: exempt
wildcards tenant=t*prod,tenant=res*,type: 60/1m";
    let rules = read("");
    assert_eq!(lines(&rules), expected.lines().collect::<Vec<_>>());
    for limiter in rules
        .iter()
        .filter_map(|rule| Some((rule, rule.limiter()?)))
    {
        assert_eq!(
            limiter.1.name().to_string(),
            format!("{}/{}", limiter.0.domain, limiter.0.path)
        );
    }
    let one = read("values.yaml");
    assert_eq!(
        lines(&one),
        [
            "databases database=orders: 300/1s",
            "databases database=default: 500/1s"
        ]
    );
    let position = one.iter().nth(1).unwrap().position.to_string();
    assert!(
        position.ends_with("tests/config/values.yaml:9:5"),
        "{position}"
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/envoy/limits.yaml");
    assert_eq!(
        domains(&RuleSet::read(&example, &store(), None).unwrap()),
        ["edge"]
    );
}

#[test]
fn scalars_are_read_as_they_are_written() {
    // A `\t` is a tab.
    let lines = r#"
        404 => 404
        007 => 007
        1.10 => 1.10
        -1 => -1
        1_000 => 1_000
        0x10 => 0x10
        true => true
        no => no
        .nan => .nan
        340282366920938463463374607431768211456 => 340282366920938463463374607431768211456
        "a\tb" => a\tb
        'it''s' => it's
        ä: => error
        "é, ü" # comment => é, ü
    "#;
    for (value, expected) in rows(lines) {
        let expected = expected.replace(r"\t", "\t");
        let text = format!("domain: d\ndescriptors:\n  - key: 12\n    value: {value}\n");
        match parse(&text) {
            Ok(rules) => assert!(rules.find("d", &[("12", &*expected)]).is_some(), "{value}"),
            Err(error) => assert_eq!(expected, "error", "{value}: {error}"),
        }
    }
    for flag in ["true", "True", "yes", "on"] {
        let rules = parse(&format!(
            "domain: d\ndescriptors: [{{key: k, shadow_mode: {flag}}}]"
        ))
        .unwrap();
        assert!(rules.iter().next().unwrap().shadow, "{flag}");
    }
}

#[test]
fn fields_that_are_null_or_zero_are_absent() {
    let rule = |fields: &str| {
        let text = format!("name: x\ndomain: d\ndescriptors: [{{ key: k, {fields} }}]");
        lines(&parse(&text).unwrap_or_else(|errors| panic!("{errors}: {text}")))
    };
    let all = "value: null, rate_limit: {unit: HOUR, requests_per_unit: 5, unlimited: null, name: null, replaces: null, policy: null, \
               counting: null}, descriptors: null, shadow_mode: null, quota_mode: null, detailed_metric: null, value_to_metric: null, \
               share_threshold: null, metadata: null";
    let cases = "
        rate_limit: null => d k: exempt
        rate_limit: null, descriptors: [{key: l, rate_limit: null}] => d k,l: exempt
        ALL => d k: 5/1h
        rate_limit: {unit: hour} => d k: deny
        rate_limit: {unit: hour, requests_per_unit: null} => d k: deny
        rate_limit: {unlimited: true, unit: ''} => d k: unlimited
        rate_limit: {unlimited: true, unit: null, requests_per_unit: 0} => d k: unlimited
        rate_limit: {policy: 5/1h, unit: '', requests_per_unit: null} => d k: 5/1h
        rate_limit: {unit: hour, requests_per_unit: 5, unlimited: false, name: '', replaces: []} => d k: 5/1h
    ";
    for (fields, expected) in rows(&cases.replace("ALL", all)) {
        assert_eq!(rule(fields), [expected], "{fields}");
    }
    // Files as Envoy Gateway writes them, of which its tests join several.
    let rest = "shadow_mode: false, quota_mode: false, detailed_metric: false, value_to_metric: false, share_threshold: false";
    let limit = "requests_per_unit: 5, unit: SECOND, unlimited: false, name: \"\", replaces: []";
    let text = format!(
        "name: listener/one\ndomain: listener/one\ndescriptors:\n- {{ key: route, value: route, rate_limit: null, {rest}, descriptors: [\
         {{ key: match, value: '', rate_limit: {{ {limit} }}, descriptors: [], {rest} }}] }}"
    );
    let rules = parse(&format!(
        "{text}\n---\ndomain: two\ndescriptors:\n- {{ key: k, value: 010 }}\n---\n"
    ))
    .unwrap();
    assert_eq!(
        lines(&rules),
        ["listener/one route=route,match: 5/1s", "two k=010: exempt"]
    );
    assert_eq!(rules.iter().nth(1).unwrap().position.to_string(), "f:8:3");
    assert_eq!(domains(&rules), ["listener/one", "two"]);
}

#[test]
fn every_error_of_a_file_has_a_place() {
    // A `\\n` begins a new line, and `&&` separates errors.
    let lines = r#"
         => 1:1: expected a mapping, found nothing
        - a => 1:1: expected a mapping, found a list
        descriptors: [] => 1:1: expected `domain` with a text
        domain: '' => 1:9: expected `domain` with a text
        domain: [d] => 1:9: expected a text, found a list
        domain: d\ndescriptors: {} => 2:14: expected a list, found a mapping
        domain: d\ndescriptors:\n- a\n- 7 => 3:3: expected a mapping, found "a" && 4:3: expected a mapping, found 7
        domain: d\ndomain: e\n0.25: f => 2:1: duplicate field `domain` && 3:1: expected one of the fields domain, descriptors, name, found 0.25
        domain: a: b => 1:10: 
        domain: d\n---\ndomain: d\nx: 010\n---\n---\ndomain: d => 4:1: expected one of the fields domain, descriptors, name, found "x"
        domain: d\n---\ndomain: d => 3:9: the domain "d" is already defined at f:1:9
        domain: *d => 1:9: reference to unknown value
        descriptor value: v => 3:3: expected `key` with a text
        descriptor key: k, value: {} => 3:19: expected a text, found a mapping
        descriptor key: 'k*' => 3:9: expected a key without `*`: wildcards are for values
        descriptor key: k, ratelimit: 1 => 3:12: expected one of the fields key, value, rate_limit, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata, descriptors, found "ratelimit"
        descriptor key: k, shadow_mode: 1, detailed_metric: maybe => 3:25: expected true or false, found 1 && 3:45: expected true or false, found "maybe"
        descriptor key: k, value: v, share_threshold: true => 3:39: `share_threshold` needs a value with `*`
        descriptor key: k, metadata: 5 => 3:22: expected a mapping, found 5
        descriptor key: k, rate_limit: [] => 3:24: expected a mapping, found a list
        descriptor key: k}\n- {key: k, value: v}\n- {key: k, value: v}\n- {key: k => 5:3: the descriptor at 4:3 has the same key and value && 6:3: the descriptor at 3:3 has the same key and value
        limit  => 4:15: expected `requests_per_unit`, `policy` or `unlimited: true` && 4:15: expected `unit` with a text
        limit unit: fortnight, requests_per_unit: -1 => 4:22: expected second, minute, hour, day, week, month or year, found "fortnight" && 4:52: expected a whole number, found -1
        limit unit: unknown, requests_per_unit: '5' => 4:22: expected second, minute, hour, day, week, month or year, found "unknown" && 4:50: expected a whole number, found "5"
        limit unit: day, requestsperunit: 5 => 4:27: expected one of the fields unit, requests_per_unit, unlimited, name, replaces, policy, counting, lease, found "requestsperunit"
        limit unit: day, requests_per_unit: 9007199254740993 => 4:46: 
        limit unlimited: true, unit: day, requests_per_unit: 25 => 4:39: `unit` cannot be combined with `unlimited`
        limit policy: 5/10x, unit: second => 4:24: policy "5/10x": expected a whole number and a unit && 4:37: `unit` cannot be combined with `policy`
        limit policy: '5/1m~1s, 9/1h~1m' => 4:24: policy "5/1m~1s, 9/1h~1m": resolutions 1s and 1m differ, expected one resolution
        limit policy: 5/10s, counting: both => 4:41: expected admitted or attempts, found "both"
        limit unit: minute, requests_per_unit: 5, lease: 5s => 4:59: policy "5/1m+5s": lease of 5s is not supported; the nearest are 1s and 10s
        limit policy: 5/10s+1s, lease: 1s => 4:41: `lease` cannot be combined with `policy`
        limit policy: 5/10s+1s, counting: attempts => 4:24: a lease cannot be combined with `counting: attempts`
        limit unit: day, requests_per_unit: 0, counting: attempts => 4:59: `counting` cannot be combined with `requests_per_unit: 0`
        limit policy: 5/1s, name: a, replaces: [{name: a}, {name: }, {}, b, {name: c, key: d}] => 4:50: expected the name of another rule, found this rule's name "a" && 4:61: expected `name` with a text && 4:71: expected `name` with a text && 4:75: expected a mapping, found "b" && 4:88: expected one of the fields name, found "key"
    "#;
    for (given, expected) in rows(lines) {
        let given = given.replace(r"\n", "\n");
        let text = match given.split_once(' ') {
            Some(("limit", limit)) => {
                format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {{{limit}}}\n")
            }
            Some(("descriptor", fields)) => format!("domain: d\ndescriptors:\n- {{{fields}}}\n"),
            _ if given == "limit" => {
                "domain: d\ndescriptors:\n- key: k\n  rate_limit: {}\n".to_owned()
            }
            _ => given,
        };
        let Errors(errors) = parse(&text).expect_err(&text);
        let expected: Vec<_> = expected
            .split(" && ")
            .map(|error| format!("f:{error}"))
            .collect();
        let is_same = |(error, start): (&String, &String)| error.starts_with(start);
        let same = errors.len() == expected.len() && errors.iter().zip(&expected).all(is_same);
        assert!(same, "{text}\n{errors:#?}\nexpected {expected:#?}");
    }
    let Errors(errors) =
        RuleSet::parse("f", b"domain: d\n# \xc3\xa4 \xff", &store(), None).unwrap_err();
    assert_eq!(errors, ["f:2:5: expected UTF-8"]);
}

#[test]
fn a_folder_is_read_as_kubernetes_mounts_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let write =
        |name: &str, domain: &str| fs::write(path.join(name), format!("domain: {domain}")).unwrap();
    let domains = || RuleSet::read(path, &store(), None).map(|rules| domains(&rules));
    let errors = || {
        domains()
            .unwrap_err()
            .to_string()
            .replace(&path.display().to_string(), "DIR")
    };

    assert_eq!(errors(), "DIR: the folder contains no *.yaml or *.yml file");
    fs::create_dir(path.join("..1")).unwrap();
    write("..1/b.yaml", "b");
    symlink("..1", path.join("..data")).unwrap();
    symlink("..data/b.yaml", path.join("b.yaml")).unwrap();
    write("c.yml", "c");
    write("a.yaml", "a");
    write(".hidden.yaml", "hidden");
    write("notes.txt", "notes");
    fs::create_dir(path.join("folder.yaml")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(path.join("pipe.yaml"))
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(domains().unwrap(), ["a", "b", "c"]);

    write("d.yaml", "b\nextra: 1");
    write("e.yaml", "a");
    symlink("nowhere", path.join("f.yaml")).unwrap();
    let expected = "DIR/d.yaml:2:1: expected one of the fields domain, descriptors, name, found \"extra\"\n\
                    DIR/e.yaml:1:9: the domain \"a\" is already defined at DIR/a.yaml:1:9\n\
                    DIR/f.yaml: No such file or directory (os error 2)";
    assert_eq!(errors(), expected);
    let absent = RuleSet::read(&path.join("absent"), &store(), None)
        .unwrap_err()
        .to_string();
    assert!(
        absent.ends_with("absent: No such file or directory (os error 2)"),
        "{absent}"
    );
}
