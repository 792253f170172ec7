//! How to test code that uses a limiter, without a server and without sleeping: `cargo test --example unit_test`.
//!
//! The code takes a store that is chosen at run time. The tests pass an in-memory store with a mock clock.

use std::sync::Arc;

use exact_limiter::{Counting, Error, Limiter, MemoryStore, Policy, SharedStore, policy};

const ATTEMPTS: Policy = policy!("3/5m").with_counting(Counting::Attempts);

/// The code under test, which limits the password attempts for each account.
struct Login {
    attempts: Limiter,
}

impl Login {
    fn new(store: SharedStore) -> Self {
        Self {
            attempts: Limiter::new("login", ATTEMPTS, store),
        }
    }

    async fn attempt(&self, account: &str, password: &str) -> Result<&'static str, Error> {
        let decision = self.attempts.acquire(account).await?;
        if let Some(wait) = decision.retry_after() {
            return Ok(if wait.as_secs() > 60 {
                "locked, try again later"
            } else {
                "locked, try again in a minute"
            });
        }
        if password != "open sesame" {
            return Ok("wrong password");
        }
        self.attempts.reset(account).await?;
        Ok("welcome")
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let login = Login::new(Arc::new(MemoryStore::new()));
    for password in ["guess", "open sesame"] {
        println!("{}", login.attempt("ann", password).await?);
    }
    println!("now run the tests: cargo test --example unit_test");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use exact_limiter::time::WithClock;
    use limiter_testkit::MockClock;

    use super::*;

    fn login(clock: &MockClock) -> Login {
        Login::new(Arc::new(WithClock::new(MemoryStore::new(), clock.clone())))
    }

    #[tokio::test]
    async fn the_account_locks_after_three_attempts_and_hammering_keeps_it_locked() {
        let clock = MockClock::new();
        let login = login(&clock);
        let attempt = async |password| login.attempt("ann", password).await.unwrap();
        for _ in 0..3 {
            assert_eq!(attempt("guess").await, "wrong password");
        }
        clock.advance(Duration::from_secs(200));
        // The account is locked even for the right password, and this attempt also counts.
        assert_eq!(attempt("open sesame").await, "locked, try again later");
        // The first three attempts are exactly 300 s old and no longer count. The one at 200 s still counts.
        clock.advance(Duration::from_secs(100));
        assert_eq!(attempt("open sesame").await, "welcome");
    }

    #[tokio::test]
    async fn another_account_is_not_affected() {
        let login = login(&MockClock::new());
        for _ in 0..4 {
            login.attempt("ann", "guess").await.unwrap();
        }
        let ben = login.attempt("ben", "open sesame").await;
        assert_eq!(ben.unwrap(), "welcome");
    }
}
