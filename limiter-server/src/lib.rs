//! The server behind the program `limiter-server`: Envoy's rate limit service, and the whole API for programs in any language.
