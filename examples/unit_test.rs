//! How to test code that uses a limiter: the store is chosen at run time, and in a test it is a store in memory with a mock
//! clock in front. No server, no sleeping: `cargo test --example unit_test`.

use std::sync::Arc;

use limiter::{Counting, Error, Limiter, MemoryStore, Policy, SharedStore, policy};

const ATTEMPTS: Policy = policy!("3/5m").with_counting(Counting::Attempts);

/// The code under test: it limits password attempts for an account, and says how long to wait.
struct Login {
    attempts: Limiter,
}

impl Login {
    fn new(store: SharedStore) -> Self {
        Self { attempts: Limiter::new("login", ATTEMPTS, store) }
    }

    async fn attempt(&self, account: &str, password: &str) -> Result<&'static str, Error> {
        let decision = self.attempts.acquire(account).await?;
        if let Some(wait) = decision.retry_after() {
            return Ok(if wait.as_secs() > 60 { "locked, try again later" } else { "locked, try again in a minute" });
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
    println!("the tests are the point: cargo test --example unit_test");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limiter::time::WithClock;
    use limiter_testkit::MockClock;

    use super::*;

    fn login(clock: &MockClock) -> Login {
        Login::new(Arc::new(WithClock::new(MemoryStore::new(), clock.clone())))
    }

    #[tokio::test]
    async fn the_account_locks_after_three_attempts_and_hammering_keeps_it_locked() {
        let clock = MockClock::new();
        let login = login(&clock);
        for _ in 0..3 {
            assert_eq!(login.attempt("ann", "guess").await.unwrap(), "wrong password");
        }
        clock.advance(Duration::from_secs(200));
        // The right password does not help now, and trying it counts as an attempt.
        assert_eq!(login.attempt("ann", "open sesame").await.unwrap(), "locked, try again later");
        // The first three attempts are now exactly 300 s old and no longer count; the one at 200 s does.
        clock.advance(Duration::from_secs(100));
        assert_eq!(login.attempt("ann", "open sesame").await.unwrap(), "welcome");
    }

    #[tokio::test]
    async fn another_account_is_not_affected() {
        let clock = MockClock::new();
        let login = login(&clock);
        for _ in 0..4 {
            login.attempt("ann", "guess").await.unwrap();
        }
        assert_eq!(login.attempt("ben", "open sesame").await.unwrap(), "welcome");
    }
}
