//! The tests run limiter-tower and limiters within other frameworks.
