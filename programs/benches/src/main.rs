//! Measures the contestants of services in turns, and writes the tables.

use std::env;

use anyhow::Result;
use service_benches::{SERVICES, service};

fn main() -> Result<()> {
    // For a scenario: the program that serves one response to all requests.
    if let [_, flag, file] = &env::args().collect::<Vec<_>>()[..]
        && flag == service::REPEAT
    {
        return service::repeat(file);
    }
    SERVICES.run()
}
