//! Options that several commands share.

use clap::ValueEnum;
use limiter_core::Counting;

/// Which acquires count.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Count {
    Admitted,
    Attempts,
}

impl From<Count> for Counting {
    fn from(count: Count) -> Self {
        match count {
            Count::Admitted => Self::Admitted,
            Count::Attempts => Self::Attempts,
        }
    }
}

/// Where the logs are stored.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Memory,
    #[cfg(feature = "redis")]
    Redis(String),
}

impl Store {
    /// Parses the option.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "memory" {
            return Ok(Store::Memory);
        }
        #[cfg(feature = "redis")]
        return crate::redis::parse_url(text)
            .map(Store::Redis)
            .map_err(|expected| format!("expected memory, or {expected}"));
        #[cfg(not(feature = "redis"))]
        return Err(String::from("expected memory: this build has no Redis"));
    }
}
