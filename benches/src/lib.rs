//! Compares the limiter with its peers. Scenarios are declared as data in `scenarios/`. [`turns`] measures all its contestants in turns
//! within one process, [`record`] keeps the figures of each CPU family, and [`render`] writes the documents that show
//! them. The program and the criterion benches (`benches/`) are the front ends.

#![allow(missing_debug_implementations, reason = "the peers have none")]

mod declared;
pub mod group;
mod http;
mod lease;
pub mod memory;
mod postgres;
pub mod record;
mod redis;
pub mod render;
pub mod service;
pub mod turns;
