//! Several rules over stacks whose store never answers. The runtime's clock is paused: it moves on while all tasks wait.

use std::time::Duration;

use exact_limiter::wrappers::Guarded;
use exact_limiter::{Limiter, MemoryStore, policy};
use http::StatusCode;
use limiter_tower::key::{Constant, Header};
use limiter_tower::{LimitLayer, MissingKey, Rule};
use testbed::{Does, Faulty};
use tokio::time::Instant;

use crate::common::{CLOSED, get_with, hello};

/// The layer's default.
const TIMEOUT: Duration = Duration::from_millis(700);

#[tokio::test(start_paused = true)]
async fn a_fallback_answers_however_many_rules_hang() {
    println!("rules | slowest response of 40");
    for rules in [1, 2, 5, 8, 20] {
        let store = Faulty::new(MemoryStore::new());
        let stack =
            std::sync::Arc::new(Guarded::builder(store.clone()).fallback(MemoryStore::new()));
        let rules = (0..rules).map(|n| {
            let limiter = Limiter::new(format!("rule {n}"), policy!("20/1h"), stack.clone());
            let limiter = limiter.into_shared();
            match n {
                1 => Rule::new(
                    limiter,
                    Header::new("x-key".parse().unwrap()),
                    MissingKey::Reject(StatusCode::UNAUTHORIZED),
                ),
                _ => Rule::new(limiter, Constant::new("all"), MissingKey::Skip),
            }
        });
        let rules: Vec<Rule> = rules.collect();
        let count = rules.len();
        let app = hello(LimitLayer::new(rules, CLOSED));
        store.set(Does::Hang);
        let mut slowest = Duration::ZERO;
        for n in 0..40 {
            let began = Instant::now();
            let headers: &[_] = if n % 4 == 0 { &[] } else { &[("x-key", "k")] };
            let status = get_with(&app, "/", headers).await.status;
            assert!([200, 401, 429].contains(&status), "{count} rules: {status}");
            slowest = slowest.max(began.elapsed());
            // The breaker lets a probe pass now and then.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("{count} | {slowest:?}");
        assert!(slowest <= TIMEOUT, "{count} rules: {slowest:?}");
    }
}
