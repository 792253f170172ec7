//! The sections of requests to the server, and through axum.

use limiter_benches::record::Record;
use limiter_benches::render::Sections;
use limiter_benches::render::table::{figure, goals, origin, ratio, row, table};

use crate::PACKAGE;
use crate::http::{self, HTTP};
use crate::service::{FLOOR, OURS, PEER, SERVICE};

pub(crate) fn sections(records: &[Record]) -> Sections {
    let columns = [
        figure("limiter-server", OURS, "processor"),
        figure("same bytes", FLOOR, "processor"),
        ratio("ratio to same bytes", OURS, "processor", FLOOR),
        figure("always OK", PEER, "processor"),
        ratio("ratio to always OK", OURS, "processor", PEER),
        figure("median", OURS, "half"),
        figure("p99", OURS, "p99"),
        figure("median, always OK", PEER, "half"),
        figure("p99, always OK", PEER, "p99"),
    ];
    let scenarios = SERVICE
        .scenarios
        .iter()
        .map(|scenario| row(&scenario.name, &scenario.about));
    let unit = "CPU time relative to always OK, unless another unit is named";
    Sections::from([
        ("service-origin", origin(PACKAGE, "service", records)),
        ("service", table(records, "scenario", &columns, scenarios)),
        ("service-goals", goals(records, unit, &SERVICE.goals)),
    ])
}

pub(crate) fn http_sections(records: &[Record]) -> Sections {
    let columns = [
        figure(http::BARE, http::BARE, "ns"),
        figure(http::OURS, http::OURS, "ns"),
        figure(http::GOVERNOR, http::GOVERNOR, "ns"),
        figure("overhead, limiter", http::OURS, "overhead"),
        figure("overhead, governor", http::GOVERNOR, "overhead"),
    ];
    let scenarios = HTTP
        .scenarios
        .iter()
        .map(|scenario| row(&scenario.name, &scenario.about));
    Sections::from([
        ("http-origin", origin(PACKAGE, "http", records)),
        ("http", table(records, "scenario", &columns, scenarios)),
        (
            "http-goals",
            goals(records, "overhead to tower_governor's", &HTTP.goals),
        ),
    ])
}
