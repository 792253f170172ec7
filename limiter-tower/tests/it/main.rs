//! The layers, in process.

mod abandoned;
mod addresses;
mod common;
mod hanging;
mod header_fields;
mod reported;
mod rules;
mod settling;
mod store_failure;
