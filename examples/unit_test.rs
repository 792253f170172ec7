//! How an application tests its own code that uses a limiter: the limiter is generic over the store, and a mock clock
//! tells the time. No server, no sleeping: `cargo test --example unit_test`.

use limiter::{Error, Limiter, WindowStore};

/// An application's own code: at most so many password attempts for an account, and a message that says how long to wait.
struct Login<S> {
    attempts: Limiter<S>,
}

impl<S: WindowStore> Login<S> {
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
    let limit = limiter::Limit::new(3, std::time::Duration::from_secs(300))?;
    let login = Login { attempts: Limiter::new(limiter::MemoryStore::new(), limit) };
    for password in ["guess", "open sesame"] {
        println!("{}", login.attempt("ann", password).await?);
    }
    println!("the tests are the point: cargo test --example unit_test");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limiter::{Counting, Limit, MemoryStore, Policy};
    use limiter_testkit::MockClock;

    use super::*;

    fn login(clock: &MockClock) -> Login<MemoryStore> {
        let limit = Limit::new(3, Duration::from_secs(300)).unwrap();
        let policy = Policy::from(limit).counting(Counting::Attempts);
        Login { attempts: Limiter::new(MemoryStore::new(), policy).with_clock(clock.clone()) }
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
        // Exactly when the three first attempts are 300 s old, only the one at 200 s counts.
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
