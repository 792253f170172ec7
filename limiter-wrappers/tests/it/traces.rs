//! What traces contain, and what they never do.

use std::io;
use std::sync::{Arc, Mutex};

use crate::faulty::{Does, Faulty, SECRET, traffic};
use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_wrappers::observe::{ObservedStore, Tracing};
use tracing_subscriber::fmt::MakeWriter;

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Runs something and returns its log. One at a time: which spans are enabled is known to the process, not to the thread.
fn log_of(run: impl FnOnce()) -> String {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    tracing::subscriber::with_default(subscriber.with_writer(lines.clone()).finish(), run);
    String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn traces_have_spans_and_no_keys() {
    let log = log_of(|| {
        traffic(&Limiter::new("search", policy!("5/10s"), ObservedStore::new(MemoryStore::new(), Tracing::new())));
    });
    assert!(!log.contains(SECRET), "{log}");
    let line = "decided limiter=\"search\" operation=\"acquire\" allowed=false limit=5/10s remaining=0 retry_after=";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    assert!(log.contains("changed limiter=\"search\" operation=\"settle\" applied=true"), "{log}");
    assert!(log.contains("decided limiter=\"search\" operation=\"status\" limit=5/10s remaining=0 took="), "{log}");
    assert!(!log.contains("WARN") && log.contains("kind=cost_exceeds_limit"), "{log}");
}

#[test]
fn a_span_surrounds_the_store() {
    let log = log_of(|| {
        let remote = Faulty::default();
        remote.rule(|_, _| {
            tracing::debug!("in the store");
            Does::Answer
        });
        let limiter = Limiter::new("search", policy!("5/10s"), ObservedStore::new(remote, Tracing::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _ = runtime.block_on(limiter.acquire(SECRET)).unwrap();
    });
    let span = "limiter{limiter=\"search\" operation=\"acquire\" cost=1}: ";
    assert!(log.contains(&format!("{span}it::traces: in the store")), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}
