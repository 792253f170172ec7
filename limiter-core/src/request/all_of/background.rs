//! Refunds that nobody waits for.

use std::fmt;
use std::sync::Arc;

use crate::clock::BoxFuture;

/// Runs refunds without a waiting caller, on the program's runtime.
///
/// ```
/// use limiter_core::request::Background;
/// let background = Background::new(|refund| drop(tokio::spawn(refund)));
/// # let _ = background;
/// ```
#[derive(Clone)]
pub struct Background(Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>);

impl Background {
    /// Returns a background that passes each refund to `spawn`, which must not block.
    pub fn new(spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(spawn))
    }

    /// Runs a refund or a settlement.
    pub fn run(&self, refund: BoxFuture<'static, ()>) {
        (self.0)(refund);
    }
}

/// Runs a refund in the background. Default: on tokio if it is there; otherwise the refund is lost.
pub(super) fn run(background: Option<&Background>, refund: BoxFuture<'static, ()>) {
    if let Some(background) = background {
        background.run(refund);
        return;
    }
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(refund);
        return;
    }
    drop(refund);
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background(…)")
    }
}
