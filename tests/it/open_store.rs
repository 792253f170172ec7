//! A store by its text.

use exact_limiter::{ErrorKind, Limiter, open_store, policy};

#[tokio::test]
async fn a_text_opens_its_store() {
    let search = Limiter::new("search", policy!("1/1h"), open_store("memory").unwrap());
    assert!(search.acquire("customer 7").await.unwrap().is_allowed());
    assert!(!search.acquire("customer 7").await.unwrap().is_allowed());

    let postgres = testbed::server::Postgres::start().unwrap();
    let search = || {
        Limiter::new(
            "search",
            policy!("1/1h"),
            open_store(&postgres.url()).unwrap(),
        )
    };
    for (key, is_allowed) in [(1, true), (2, false)] {
        let search = search();
        let decision = loop {
            // On a busy machine, a new server may take longer than the default timeout.
            match search.acquire("customer 7").idempotency_key(key).await {
                Err(error) if error.kind() == ErrorKind::Timeout => {}
                decision => break decision.unwrap(),
            }
        };
        assert_eq!(decision.is_allowed(), is_allowed);
    }

    // Nothing listens there, and opening does not wait for it.
    for url in [
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1",
        "postgres://127.0.0.1:1",
        "postgresql://127.0.0.1:1/app?sslmode=require",
    ] {
        let search = Limiter::new("search", policy!("1/1h"), open_store(url).unwrap());
        let error = search.acquire("customer 7").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}");
    }
    for (text, expected) in [
        (
            "",
            "expected memory or the URL of Postgres or Redis: expected redis://",
        ),
        ("Memory", "found no scheme"),
        ("https://u:secret@h", "found https://"),
        ("redis://u:sec/ret@h", "percent-encode"),
        ("postgres://u:sec/ret@h", "percent-encode"),
        (
            "postgres://u:secret",
            "expected postgres:// or postgresql://",
        ),
        (
            "postgres:/u:secret@h",
            "expected postgres:// or postgresql://",
        ),
        (
            "postgres://u:secret@h?sslmode=allow",
            "disable, require or verify-full",
        ),
        ("postgres://?sslmode=disable", "with a host"),
        ("POSTGRES://u:secret@h", "found POSTGRES://"),
        (
            "jdbc:postgresql://h?password=secret",
            "found jdbc:postgresql://",
        ),
        ("'postgres://u:secret@h'", "without quotes"),
    ] {
        let error = open_store(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{text}");
        let error = error.to_string();
        assert!(error.contains(expected) && !error.contains("sec"));
    }
}
