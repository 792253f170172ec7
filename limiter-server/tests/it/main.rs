//! The tests of limiter-server.
