//! Compares the limiter with its peers. The scenarios have two front ends: the criterion benches (`benches/`), and
//! the program. The program measures all libraries in turns within one process and writes the documents that show the
//! figures.

#![allow(missing_debug_implementations, reason = "the peers have none")]

pub mod admission;
pub mod baselines;
pub mod bytes;
pub mod cached;
pub mod documents;
pub mod flood;
pub mod http;
pub mod libraries;
pub mod measure;
pub mod operations;
pub mod plot;
pub mod readme;
pub mod record;
pub mod remote;
pub mod report;
pub mod scenario;
pub mod surface;
mod workload;
