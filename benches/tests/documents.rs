//! The committed documents match the committed figures, and say of a peer what is so.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use limiter_benches::LIBRARY;
use limiter_benches::render::sources;

#[test]
fn the_documents_agree_with_the_figures() {
    for (path, text) in LIBRARY.documents().expect("the records can be read") {
        let file = Path::new(LIBRARY.workspace).join(path);
        let committed = fs::read_to_string(file).expect("the document can be read");
        assert!(
            committed == text,
            "{path} differs: cargo run --release -p {} -- --render",
            LIBRARY.package
        );
        assert!(
            !text.contains("---:|\n\n"),
            "{path} has a table without rows"
        );
    }
}

/// limitador reserves all units, admits all units again, and then charges the reservation: the README's "reservations that checks ignore".
#[test]
fn ordinary_checks_of_limitador_ignore_reservations() {
    const L: u64 = 100;
    let limiter = limitador::RateLimiter::new(1);
    let conditions: Vec<limitador::limit::Expression> = Vec::new();
    let limit = limitador::limit::Limit::new("bench", L, 3_600, vec![], conditions);
    limiter.add_limit(limit);
    let (namespace, context) = ("bench".into(), HashMap::new().into());
    let reserved = limiter
        .reserve(&namespace, &context, L, None)
        .expect("a store in memory");
    assert!(!reserved.limited);
    let checked = limiter.check_rate_limited_and_update(&namespace, &context, L);
    assert!(!checked.expect("a store in memory").limited);
    let id = reserved.reservation_id.as_ref();
    let committed = limiter.commit_reservation(&namespace, &context, id, L);
    assert!(committed.expect("a store in memory").reservation_released);
    let counters = limiter.get_counters(&namespace).expect("a store in memory");
    let remaining = counters.iter().map(limitador::counter::Counter::remaining);
    assert_eq!(remaining.collect::<Vec<_>>(), [Some(0)]);
}

/// Figures that the code sets, with their documents.
const SET: [(&str, &str); 9] = [
    ("docs/operations.md", "100 µs"),
    ("docs/operations.md", "100 ms"),
    ("docs/operations.md", "500 ms"),
    ("limiter-log", "255 bytes"),
    ("limiter-log", "100 times"),
    ("limiter-postgres", "300 ms"),
    ("limiter-redis", "256 bytes"),
    ("limiter-redis", "300 bytes"),
    ("limiter-tower", "700 ms"),
];

#[test]
fn every_figure_is_rendered_or_links_to_its_row() {
    let others = ["README.md", "docs/operations.md"];
    let found = sources::unsourced(Path::new(LIBRARY.workspace), &others, &SET);
    let found = found.expect("the documents can be read");
    assert!(
        found.is_empty(),
        "figures that are neither rendered nor link to a row of RESULTS.md:\n{}",
        found.join("\n")
    );
}
