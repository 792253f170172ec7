//! Prefixes keep tenants apart, and nothing shows them to the caller.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::OracleStore;
use limiter_wrappers::{Prefix, Timeout};

use crate::faulty::{Does, Faulty};

#[test]
fn two_prefixes_share_no_log() {
    let store = Arc::new(OracleStore::new());
    let mut pairs = Vec::new();
    // Whatever a caller may choose, also what the encoding uses.
    let texts = ["", "a", "b", "c", "ab", "bc", "a,", ",a", ",", ",,", "\\", "\\,", "a\\", "\\a", "a,b", "a\\,b"];
    for prefix in texts {
        for key in texts {
            pairs.push((prefix, key));
        }
    }
    for (prefix, key) in &pairs {
        let limiter = Limiter::new("search", policy!("1/1h"), Prefix::new(*prefix, store.clone()));
        assert!(limiter.acquire(*key).now().unwrap().allowed(), "{prefix:?} and {key:?} meet another log");
    }
    for (prefix, key) in pairs {
        let limiter = Limiter::new("search", policy!("1/1h"), Prefix::new(prefix, store.clone()));
        assert!(!limiter.acquire(key).now().unwrap().allowed());
        assert!(limiter.reset(key).now());
    }
}

#[test]
fn prefixes_nest_and_the_log_is_that_of_the_tuple() {
    let store = Arc::new(MemoryStore::new());
    let (one, outer) = ("a,b", Prefix::new("b", Prefix::new("a", store.clone())));
    let nested = Limiter::new("search", policy!("5/1h"), outer);
    let flat = Limiter::new("search", policy!("5/1h"), Prefix::new(one, store.clone()));
    let plain = Limiter::new("search", policy!("5/1h"), store);
    assert_eq!(nested.acquire("k").now().unwrap().used(), 1);
    assert_eq!(flat.acquire("k").now().unwrap().used(), 1);
    assert_eq!(plain.acquire(("a,b", "k")).now().unwrap().used(), 2);
    assert_eq!(nested.status("k").now().unwrap().used(), 1);
}

#[tokio::test]
async fn errors_are_about_the_callers_key() {
    let (away, timeout) = (Faulty::default(), Duration::from_millis(1));
    let limiter = Limiter::new("search", policy!("5/1h"), Prefix::new("tenant", Timeout::new(away.clone(), timeout)));
    away.set(Does::Hang);
    assert_eq!(limiter.acquire("k").await.unwrap_err().key(), Some(&b"k"[..]));
    assert_eq!(limiter.acquire("k").cost(0).await.unwrap_err().key(), Some(&b"k"[..]));
    assert_eq!(limiter.reset("k").await.unwrap_err().key(), Some(&b"k"[..]));
    let memory = Limiter::new("search", policy!("5/1h"), Prefix::new("tenant", MemoryStore::new()));
    let receipt = memory.acquire("k").now().unwrap().receipt().unwrap();
    assert!(memory.refund("k", receipt).now().applied());
    assert_eq!(limiter.refund("k", receipt).await.unwrap_err().key(), Some(&b"k"[..]));
    // An error that is about no key stays so.
    away.set(Does::Refuse);
    assert_eq!(limiter.reset("k").await.unwrap_err().key(), None);
    for error in [memory.acquire("k").cost(6).now().unwrap_err(), memory.acquire("k").cost(0).await.unwrap_err()] {
        assert_eq!(error.key(), Some(&b"k"[..]));
    }
}
