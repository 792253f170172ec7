//! The suite agrees with the oracle that it is made from, and counts what it ran.

use std::sync::Arc;

use limiter_core::DynWindowStore;
use limiter_testkit::OracleStore;
use limiter_testkit::conformance::Suite;

#[test]
fn the_oracle_conforms() {
    let report = Suite::new().sequences(500).run_blocking(Arc::new(OracleStore::new())).unwrap();
    assert_eq!(report.random_sequences, 500);
    assert!(report.golden_rows >= 100, "{report:?}");
    assert!(report.short_sequences >= 3_000, "{report:?}");
    assert!(report.contended >= 5_000, "{report:?}");
}

#[test]
fn the_oracle_conforms_behind_its_object_safe_twin() {
    let store: Arc<dyn DynWindowStore> = Arc::new(OracleStore::new());
    let report = Suite::new().sequences(100).run_blocking(store).unwrap();
    assert_eq!(report.random_sequences, 100);
}
