//! The keys that were denied lately.

use std::sync::Arc;

use limiter_server::denied::DeniedKeys;
use limiter_server::rules::{Rule, RuleSet};

use crate::rules::store;

fn rules(path: &str, before: Option<&RuleSet>) -> RuleSet {
    let text = format!("domain: edge\ndescriptors: [{{key: {path}}}]");
    RuleSet::parse("limits.yaml", text.as_bytes(), &store(), before).unwrap()
}

fn rule(rules: &RuleSet) -> &Arc<Rule> {
    rules.iter().next().unwrap()
}

fn shown(denied: &DeniedKeys, count: usize) -> Vec<(String, String, u64)> {
    let text = |denied: limiter_server::denied::DeniedKey| {
        (
            denied.rule.path.clone(),
            String::from_utf8_lossy(&denied.key).into_owned(),
            denied.times,
        )
    };
    denied.latest(count).into_iter().map(text).collect()
}

#[test]
fn the_latest_come_first_and_a_reload_changes_nothing() {
    let denied = DeniedKeys::default();
    let [logins, searches] = ["login", "search"].map(|path| rules(path, None));
    let [login, search] = [&logins, &searches].map(rule);
    for (rule, key) in [(login, "a"), (search, "a"), (login, "b"), (login, "a")] {
        denied.note(rule, key.as_bytes());
    }
    let reloaded = rules("search", Some(&searches));
    denied.note(rule(&reloaded), b"a");
    let expected = [("search", "a", 2), ("login", "a", 2), ("login", "b", 1)];
    let expected = expected.map(|(path, key, times)| (path.to_owned(), key.to_owned(), times));
    assert_eq!(shown(&denied, 9), expected);
    assert_eq!(shown(&denied, 1), expected[..1]);
    denied.forget(search, b"a");
    denied.forget(search, b"never denied");
    assert_eq!(shown(&denied, 9), expected[1..]);
}
