//! Which rule a descriptor matches, and the key it has there.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use limiter_core::SharedStore;
use limiter_memory::MemoryStore;
use limiter_server::config::Errors;
use limiter_server::rules::RuleSet;
use serde_json::json;

use crate::ask::rows;

pub(crate) fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

pub(crate) fn parse(text: &str) -> Result<RuleSet, Errors> {
    RuleSet::parse("f", text.as_bytes(), &store(), None)
}

/// Reads a file of `tests/config`, or all.
pub(crate) fn read(file: &str) -> RuleSet {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config")).join(file);
    RuleSet::read(&path, &store(), None).unwrap()
}

/// The matching rule's path, then `|` and the key, then the label if there is one.
fn found(rules: &RuleSet, domain: &str, entries: &[(&str, &str)]) -> String {
    let Some(found) = rules.find(domain, entries) else {
        return "none".to_owned();
    };
    let key = String::from_utf8_lossy(found.key.as_ref()).into_owned();
    let label = found
        .detailed
        .map_or_else(String::new, |label| format!(" | {label}"));
    format!("{} | {key}{label}", found.rule.path)
}

#[test]
fn descriptors_match_as_in_envoys_service() {
    let rules = read("");
    let lines = r"
        nowhere database=orders => none
        databases database=orders => database=orders |
        databases database=other => none
        databases  => none
        databases database=orders;table=a => none
        mail kind=newsletter => none
        mail kind=newsletter;recipient=ann => kind=newsletter,recipient | ann
        mail kind=bill;recipient=ann => none
        mail recipient=ann => recipient | ann
        mail recipient= => recipient |
        mail recipient=a,b\ => recipient | a,b\
        edge remote_address=192.0.2.5 => remote_address=192.0.2.5 |
        edge remote_address=192.0.2.6 => remote_address=192.0.2.6 |
        edge remote_address=192.0.2.7 => remote_address | 192.0.2.7
        edge path=404 => path=404 |
        edge version=1.1 => none
        // A limit on a descriptor with descriptors below it.
        all header=a => header | a
        all header=a;other=b => header,other | a,b
        all header=a,b;other=c\ => header,other | a\,b,c\\
        all header=a;other=shady => header,other=shady | a
        all header=a;free= => header,free | a,
        all header=a;absent=b => none
        all other=b;header=a => none
        // Wildcards.
        wildcards start=v => start=v* | v
        wildcards start=v1 => start=v* | v1
        wildcards start=w1 => none
        wildcards path=/api/7/action => path=/api/*/action | /api/7/action
        wildcards path=/api//action => path=/api/*/action | /api//action
        wildcards path=/api/action => none
        wildcards path=/api/7/other => none
        wildcards route=/api/1/resource/2/action => route=/api/*/resource/*/action | /api/1/resource/2/action
        wildcards route=/api/1/2/action => none
        wildcards route=/api//resource/action => none
        // An exact value, then the first wildcard, then any value. A shared wildcard is not part of the key.
        wildcards file=static/logo => file=static/logo |
        wildcards file=static/logo2 => file=static/* |
        wildcards file=static => file=stat* | static
        wildcards file=other => file | other
        // The best match of an entry applies even if the next entry has none below it.
        wildcards file=other;type=x => file,type | other,x
        wildcards file=static/logo;type=x => none
        wildcards file=static/other;type=x => none
        wildcards tenant=t1prod;tenant=res1;type=x => tenant=t*prod,tenant=res*,type | res1,x
        // Labels of metrics.
        metrics tenant=new => tenant | new | tenant=new
        metrics tenant=known => tenant=known |
        metrics route=r;method=GET;subject=s => route,method=GET,subject | r,s | route=r,method=GET,subject
        metrics file=static/a;action=x => file=static/*,action | x | file=static/*,action=x
    ";
    for (asked, expected) in rows(lines) {
        let (domain, entries) = asked.split_once(' ').unwrap_or((asked, ""));
        let entries = entries.split(';').filter_map(|entry| entry.split_once('='));
        let found = found(&rules, domain, &entries.collect::<Vec<_>>());
        assert_eq!(found.trim(), expected, "{asked}");
    }
    assert!(rules.overrides("edge").is_some() && rules.overrides("nowhere").is_none());
}

#[test]
fn different_rules_have_different_names() {
    let parts = ["a", "b", "a=b", "a,b", "a/a", ",", "=", "\\"];
    let mut names = HashSet::new();
    for domain in parts {
        for key in parts {
            let limit = json!({ "policy": "1/1s" });
            let below = parts.map(|key| json!({ "key": key, "rate_limit": limit }));
            let values =
                parts.map(|value| json!({ "key": key, "value": value, "rate_limit": limit, "descriptors": below }));
            let top = json!({ "key": key, "rate_limit": limit });
            let descriptors = [&[top][..], &values].concat();
            let rules = json!({ "domain": domain, "descriptors": descriptors });
            let rules = parse(&rules.to_string()).unwrap();
            let overrides = rules.overrides(domain).filter(|_| key == "a");
            for rule in rules.iter().chain(overrides) {
                let name = rule.limiter().unwrap().name().to_string();
                assert!(names.insert(name), "{} {}", rule.domain, rule.path);
            }
        }
    }
}

#[test]
fn long_keys_are_hashed() {
    let rules = parse(
        "domain: d\ndescriptors: [{key: k, rate_limit: {policy: 1/1s}, descriptors: [{key: k}]}]",
    )
    .unwrap();
    let key = |values: &[&str]| {
        let entries: Vec<_> = values.iter().map(|value| ("k", *value)).collect();
        String::from_utf8(rules.find("d", &entries).unwrap().key.as_ref().to_vec()).unwrap()
    };
    let longest = "x".repeat(1024);
    let longer = "x".repeat(1025);
    assert_eq!(key(&[&longest]), longest);
    let hash = "sha256:c6d8e9905300876046729949cc95c2385221270d389176f7234fe7ac00c4e430";
    assert_eq!(key(&[&longer]), hash);
    assert_ne!(key(&[&format!("{longer}x")]), hash);
    assert!(key(&[&longest, "y"]).starts_with("sha256:"));
    assert_ne!(key(&[&longest, "y"]), key(&["y", &longest]));
    // A client cannot name another one's hash.
    assert_ne!(key(&[hash]), hash);
    let labels = parse("domain: d\ndescriptors: [{key: k, detailed_metric: true}]").unwrap();
    let label = labels
        .find("d", &[("k", &*longer)])
        .unwrap()
        .detailed
        .unwrap();
    assert_eq!((&label[..7], label.len()), ("sha256:", 71));
    let entries = [("k", &*longer)];
    assert!(
        RuleSet::override_key(&entries)
            .as_ref()
            .starts_with(b"sha256:")
    );
    assert_eq!(
        RuleSet::override_key(&[("a", "b"), ("c,", "d")]).as_ref(),
        b"a,b,c\\,,d"
    );
}

#[test]
fn any_bytes_are_matched_and_have_their_own_key() {
    let rules = parse(
        "domain: d\ndescriptors:\n- {key: p, value: /login*, rate_limit: {policy: 1/1s}}\n- {key: p, rate_limit: {policy: 1/1s}, \
         detailed_metric: true, descriptors: [{key: p, rate_limit: {policy: 1/1s}}]}",
    )
    .unwrap();
    type Case<'a> = (&'a [&'a [u8]], &'a str, &'a str, Option<&'a str>);
    let cases: [Case<'_>; 6] = [
        (&[b"/login\xff"], "p=/login*", "bytes:/login%FF", None),
        (
            &[b"\xff/login"],
            "p",
            "bytes:%FF/login",
            Some("p=bytes:%FF/login"),
        ),
        (&[b"\xc3\xa4%"], "p", "ä%", Some("p=ä%")),
        (
            &[b"\xc3\xa4%\xc3"],
            "p",
            "bytes:ä%25%C3",
            Some("p=bytes:ä%25%C3"),
        ),
        (
            &["bytes:ä%25%C3".as_bytes()],
            "p",
            "bytes:bytes:ä%2525%25C3",
            Some("p=bytes:bytes:ä%2525%25C3"),
        ),
        (&[b"a\xff,", b"b"], "p,p", "bytes:a%FF\\,,b", None),
    ];
    for (values, path, key, label) in cases {
        let entries: Vec<(&[u8], &[u8])> = values.iter().map(|value| (&b"p"[..], *value)).collect();
        let found = rules.find("d", &entries).unwrap();
        assert_eq!(found.key.as_ref(), key.as_bytes(), "{key}");
        assert_eq!(
            (&*found.rule.path, found.detailed.as_deref()),
            (path, label),
            "{key}"
        );
    }
}
