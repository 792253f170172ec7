//! A store by its text.

use exact_limiter::{ErrorKind, Limiter, open_store, policy};

#[tokio::test]
async fn a_text_opens_its_store() {
    let search = Limiter::new("search", policy!("1/1h"), open_store("memory").unwrap());
    assert!(search.acquire("customer 7").await.unwrap().is_allowed());
    assert!(!search.acquire("customer 7").await.unwrap().is_allowed());

    // Nothing listens there, and opening does not wait for it.
    for url in ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1"] {
        let search = Limiter::new("search", policy!("1/1h"), open_store(url).unwrap());
        let error = search.acquire("customer 7").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}");
    }
    for (text, expected) in [
        ("", "expected memory or a Redis URL: expected redis://"),
        ("Memory", "found no scheme"),
        ("https://u:secret@h", "found https://"),
        ("redis://u:sec/ret@h", "percent-encode"),
    ] {
        let error = open_store(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{text}");
        let error = error.to_string();
        assert!(
            error.contains(expected) && !error.contains("sec"),
            "{error}"
        );
    }
}
