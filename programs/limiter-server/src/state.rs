//! The counts of the memory store in a file, in which they survive a restart.
//!
//! The file is `HEAD`, then a name, a key and a log for each log, each with its length in front, and the SHA-256 of all that.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use limiter_core::store::{Log, LogKey};
use limiter_core::{Name, Timestamp};
use limiter_memory::MemoryStore;
use metrics::counter;
use sha2::{Digest, Sha256};

const HEAD: &[u8] = b"limiter-server state 1\n";
/// How far ahead of the clock an entry may be: clocks are corrected by seconds.
const AHEAD: Duration = Duration::from_secs(60);
const SAVES: &str = "limiter_server_state_saves_total";

/// A memory store's file.
pub struct State {
    file: PathBuf,
    store: Arc<MemoryStore>,
    /// Held during a save. Its lock keeps other processes out.
    saving: Mutex<File>,
}

impl State {
    /// Loads the file into the store. A file that does not load is moved aside and logged: a server without counts is better
    /// than none.
    ///
    /// # Errors
    /// If the file cannot be read or moved, or another process uses it.
    pub fn load(file: &Path, store: Arc<MemoryStore>) -> anyhow::Result<Self> {
        let lock = with_suffix(file, ".lock");
        let lock = create(&lock).with_context(|| lock.display().to_string())?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("{} is in use by another process", file.display())
            }
            locked => locked?,
        }
        let state = Self {
            file: file.to_owned(),
            store,
            saving: Mutex::new(lock),
        };
        let bytes = match fs::read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(state),
            bytes => bytes.with_context(|| file.display().to_string())?,
        };
        match decode(&bytes) {
            Ok(logs) => logs
                .iter()
                .for_each(|(name, key, log)| state.store.import(LogKey::new(*name, *key), log)),
            Err(reason) => {
                let aside = with_suffix(file, ".refused");
                fs::rename(file, &aside).with_context(|| file.display().to_string())?;
                let (file, aside) = (file.display(), aside.display());
                tracing::error!(
                    "--state {file}: {reason}. Counts start at zero; the file is now {aside}"
                );
            }
        }
        Ok(state)
    }

    /// Saves the counts in a new file, which replaces the old one.
    pub fn save(&self) {
        let _turn = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = self.write();
        let result = if saved.is_ok() { "success" } else { "failure" };
        counter!(SAVES, "result" => result).increment(1);
        if let Err(error) = saved {
            tracing::error!(%error, "--state {}: cannot save the counts", self.file.display());
        }
    }

    /// Saves the counts at intervals, and never returns.
    pub(crate) async fn keep_saving(self: Arc<Self>, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            let state = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || state.save()).await;
        }
    }

    fn write(&self) -> io::Result<()> {
        let new = with_suffix(&self.file, ".new");
        let mut out = BufWriter::new(create(&new)?);
        let mut hash = Sha256::new();
        let mut put = |bytes: &[u8]| {
            hash.update(bytes);
            out.write_all(bytes)
        };
        put(HEAD)?;
        for (name, key, log) in self.store.export() {
            for part in [name.as_str().as_bytes(), key.as_ref(), &log.to_bytes()] {
                let len = u32::try_from(part.len()).map_err(io::Error::other)?;
                put(&len.to_le_bytes())?;
                put(part)?;
            }
        }
        out.write_all(&hash.finalize())?;
        // The rename must not reach the disk before the content does.
        out.into_inner()?.sync_all()?;
        fs::rename(new, &self.file)
    }
}

/// A limiter's name, a key and its log.
type NamedLog<'a> = (Name, &'a [u8], Log);

/// Returns the logs of a file, or why it has none, and what to do.
fn decode(bytes: &[u8]) -> Result<Vec<NamedLog<'_>>, String> {
    const DAMAGED: &str = "the file is damaged; delete it, or restore it and restart";
    if !bytes.starts_with(HEAD) {
        let text = "the file is not of this version; start the version that wrote it, or delete it";
        return Err(text.to_owned());
    }
    let (content, hash) = bytes.split_last_chunk().ok_or(DAMAGED)?;
    if <[u8; 32]>::from(Sha256::digest(content)) != *hash {
        return Err(DAMAGED.to_owned());
    }
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or_default();
    let (mut rest, mut logs) = (content.get(HEAD.len()..).ok_or(DAMAGED)?, Vec::new());
    while !rest.is_empty() {
        let mut part = || {
            let len = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
            rest.split_off(..len as usize)
        };
        let [name, key, log] = [part(), part(), part()].map(|part| part.ok_or(DAMAGED));
        let name = std::str::from_utf8(name?).map_err(|_| DAMAGED)?;
        let log = Log::from_bytes(log?)
            .map_err(|error| format!("{error}; start the version that wrote it, or delete it"))?;
        if log
            .newest()
            .is_some_and(|newest| newest > now.saturating_add(AHEAD))
        {
            let text = "the file is from the future; set the clock, move the file back and restart, or delete it";
            return Err(text.to_owned());
        }
        logs.push((Name::new(name), key?, log));
    }
    Ok(logs)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(file);
    path.push(suffix);
    path.into()
}

/// Creates an empty file that only its owner may read, because keys may be addresses or secrets.
fn create(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(file)
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("State").field(&self.file).finish()
    }
}
