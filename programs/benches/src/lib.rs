//! Benchmarks of limiter-server, and of limiter-tower in a service, compared with their peers, by the means of `limiter-benches`.

#![allow(missing_debug_implementations, reason = "the peers have none")]

mod http;
pub mod service;

use limiter_benches::group::Group;
use limiter_benches::program::Program;
use limiter_benches::render::Sections;

/// The benches of services.
pub const SERVICES: Program = Program {
    package: env!("CARGO_PKG_NAME"),
    workspace: concat!(env!("CARGO_MANIFEST_DIR"), "/.."),
    lock: include_str!("../../Cargo.lock"),
    groups: &[
        Group {
            name: "service",
            about: "Requests to limiter-server over gRPC",
            measure: service::measure,
            crates: &["limiter-server", "tonic"],
            goals: || &service::SERVICE.goals,
        },
        Group {
            name: "http",
            about: "Requests through axum",
            measure: http::measure,
            crates: &["limiter-tower", "tower_governor", "axum"],
            goals: || &http::HTTP.goals,
        },
    ],
    sections: |_| Ok(Sections::new()),
    pages: &[],
};
