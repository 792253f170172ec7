//! The documents show no measured figure without its source.

use std::path::Path;

use limiter_benches::render::sources;
use service_benches::SERVICES;

/// Figures that the code sets, with their documents.
const SET: [(&str, &str); 3] = [
    ("limiter-cli", "255 bytes"),
    ("limiter-server", "48 times"),
    ("limiter-server", "200 ms"),
];

#[test]
fn every_figure_is_rendered_or_links_to_its_row() {
    let others = ["docs/from-envoy.md"];
    let found = sources::unsourced(Path::new(SERVICES.workspace), &others, &SET);
    let found = found.expect("the documents can be read");
    assert!(
        found.is_empty(),
        "figures that are neither rendered nor link to a row of RESULTS.md:\n{}",
        found.join("\n")
    );
}
