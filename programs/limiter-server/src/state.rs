//! The counts of the memory store in a file, in which they survive a restart.
//!
//! The file is `HEAD`, then how far the store's clock was ahead of the system's, then a name, a key and a log for each log, each with
//! its length in front, and the SHA-256 of all that. The store's clock never steps, even if somebody sets the system's, and receipts
//! contain its times. So the next store's clock is ahead by that difference.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use limiter_core::store::{Log, LogKey};
use limiter_core::{Name, SyncStore, Timestamp};
use limiter_memory::MemoryStore;
use metrics::counter;
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

const HEAD: &[u8] = b"limiter-server state 2\n";
/// How far ahead of the clock an entry may be: clocks are corrected by seconds.
const AHEAD: Duration = Duration::from_secs(60);
const MAX_LINKS: usize = 40;
const SAVES: &str = "limiter_server_state_saves_total";

/// Why a file that is mounted by itself is refused.
const MOUNTED: &str =
    "the file is a mount of its own, which a save cannot replace: mount its folder instead";

/// A memory store's file.
pub struct State {
    file: PathBuf,
    store: Arc<MemoryStore>,
    system_clock: fn() -> SystemTime,
    /// Held during a save. Its lock keeps other processes out.
    saving: Mutex<File>,
}

impl Drop for State {
    fn drop(&mut self) {
        let file = self
            .saving
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // Closing is not enough: until it runs its program, a child that is started at this moment has the file too.
        let _ = file.unlock();
    }
}

impl State {
    /// Loads the file into the empty store, whose clock goes on as if there had been no restart. A file that does not load is moved
    /// aside and logged: a server without counts is better than none.
    ///
    /// # Errors
    /// If the file is not a regular one, cannot be read, moved or replaced, or another process uses it.
    pub fn load(file: &Path, store: MemoryStore) -> anyhow::Result<Self> {
        Self::load_with(file, store, SystemTime::now)
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    fn load_with(
        file: &Path,
        mut store: MemoryStore,
        system_clock: fn() -> SystemTime,
    ) -> anyhow::Result<Self> {
        let file = &resolve(file).with_context(|| file.display().to_string())?;
        ensure!(!is_mounted(file), "{}: {MOUNTED}", file.display());
        let lock = with_suffix(file, ".lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600);
        let lock = open_regular(&lock, &mut options).with_context(|| lock.display().to_string())?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("{} is in use by another process", file.display())
            }
            locked => locked?,
        }
        let mut bytes = Vec::new();
        let found = match open_regular(file, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            opened => {
                let read = opened.and_then(|mut opened| opened.read_to_end(&mut bytes));
                read.with_context(|| file.display().to_string())?;
                true
            }
        };
        match found.then(|| decode(&bytes, system_clock())) {
            None => {}
            Some(Ok((now, logs))) => {
                if let Some(now) = now {
                    store = store.with_clock_at(now);
                }
                for (name, key, log) in &logs {
                    store.import(LogKey::new(*name, *key), log);
                }
            }
            Some(Err(reason)) => {
                let aside = aside(file);
                fs::rename(file, &aside).with_context(|| file.display().to_string())?;
                let file = file.display();
                let aside = aside.display();
                tracing::error!(
                    "--state {file}: {reason}. Counts start at zero; the file is now {aside}"
                );
            }
        }
        Ok(Self {
            file: file.to_owned(),
            store: Arc::new(store),
            system_clock,
            saving: Mutex::new(lock),
        })
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
            let _ = spawn_blocking(move || state.save()).await;
        }
    }

    fn write(&self) -> io::Result<()> {
        let new = with_suffix(&self.file, ".new");
        // A killed process leaves its file behind. Whatever else stands there must not be written through.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let new_file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let saved = self.write_to(new_file);
        let saved = saved.and_then(|()| fs::rename(&new, &self.file));
        // What is left of it would keep a full disk full.
        saved.inspect_err(|_| _ = fs::remove_file(&new))
    }

    fn write_to(&self, new_file: File) -> io::Result<()> {
        let mut out = BufWriter::new(new_file);
        let mut hash = Sha256::new();
        let mut put = |bytes: &[u8]| {
            hash.update(bytes);
            out.write_all(bytes)
        };
        put(HEAD)?;
        put(&self.clock_ahead().to_le_bytes())?;
        for (name, key, log) in self.store.export() {
            for part in [name.as_str().as_bytes(), key.as_ref(), &log.to_bytes()] {
                let len = u32::try_from(part.len()).map_err(io::Error::other)?;
                put(&len.to_le_bytes())?;
                put(part)?;
            }
        }
        out.write_all(&hash.finalize())?;
        // The rename must not reach the disk before the content does.
        out.into_inner()?.sync_all()
    }

    /// Returns the microseconds by which the store's clock is ahead of the system's.
    fn clock_ahead(&self) -> i64 {
        let system = Timestamp::from_system_saturating((self.system_clock)());
        self.store.read_clock().as_micros().cast_signed() - system.as_micros().cast_signed()
    }
}

/// Does something with a disk, which may hang, away from the threads that decide.
///
/// # Errors
/// After this time. The work then goes on.
pub(crate) async fn in_time<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let done = timeout(limit, spawn_blocking(work)).await;
    Ok(done.with_context(|| format!("the disk did not respond within {limit:?}"))??)
}

/// A limiter's name, a key and its log.
type NamedLog<'a> = (Name, &'a [u8], Log);

/// Returns the logs of a file that still count, and the time at which their clock goes on: none without logs. Otherwise returns why the
/// file has none, and what to do.
fn decode(
    bytes: &[u8],
    system: SystemTime,
) -> Result<(Option<Timestamp>, Vec<NamedLog<'_>>), String> {
    const DAMAGED: &str = "the file is damaged; delete it, or restore it and restart";
    if !bytes.starts_with(HEAD) {
        let text = "the file is not of this version; start the version that wrote it, or delete it";
        return Err(text.to_owned());
    }
    let (content, hash) = bytes.split_last_chunk().ok_or(DAMAGED)?;
    if <[u8; 32]>::from(Sha256::digest(content)) != *hash {
        return Err(DAMAGED.to_owned());
    }
    let (ahead, mut rest) = content
        .strip_prefix(HEAD)
        .and_then(<[u8]>::split_first_chunk)
        .ok_or(DAMAGED)?;
    let system = Timestamp::from_system_saturating(system).as_micros();
    let now = system.saturating_add_signed(i64::from_le_bytes(*ahead));
    let now = Timestamp::from_micros_saturating(now);
    let mut logs = Vec::new();
    while !rest.is_empty() {
        let mut part = || {
            let len = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
            rest.split_off(..len as usize)
        };
        let [name, key, log] = [part(), part(), part()].map(|part| part.ok_or(DAMAGED));
        let name = std::str::from_utf8(name?).map_err(|_| DAMAGED)?;
        let log = Log::from_bytes(log?)
            .map_err(|error| format!("{error}; start the version that wrote it, or delete it"))?;
        if log.expires_at().is_some_and(|end| end > now) {
            logs.push((Name::new(name), key?, log));
        }
    }
    let newest = logs.iter().filter_map(|(.., log)| log.newest()).max();
    if newest > Some(now.saturating_add(AHEAD)) {
        let text = "the file is from the future; set the clock, move the file back and restart, or delete it";
        return Err(text.to_owned());
    }
    // A clock that was set back a little must not count entries for longer than their windows.
    Ok((newest.map(|newest| newest.max(now)), logs))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(file);
    path.push(suffix);
    path.into()
}

/// Returns the path of a file behind symbolic links, which need not exist. A save would replace a link, not the file.
fn resolve(file: &Path) -> io::Result<PathBuf> {
    let mut path = file.to_owned();
    for _ in 0..MAX_LINKS {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.canonicalize()?,
            _ => Path::new(".").canonicalize()?,
        };
        path = folder.join(path.file_name().ok_or(io::ErrorKind::IsADirectory)?);
        match fs::read_link(&path) {
            Ok(target) => path = folder.join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Opens a regular file. Anything else, such as a pipe, could block or never end.
fn open_regular(file: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("expected a regular file")),
    }
}

/// Returns `true` if a file is mounted by itself, as with `--mount type=bind` of a container.
fn is_mounted(file: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts_at(&mounts, file)
}

fn mounts_at(mounts: &str, file: &Path) -> bool {
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    // The system writes spaces like this.
    points.any(|point| Path::new(&point.replace("\\040", " ")) == file)
}

/// Returns a path for a refused file at which there is none.
fn aside(file: &Path) -> PathBuf {
    let numbered = |number: u32| match number {
        1 => with_suffix(file, ".refused"),
        _ => with_suffix(file, &format!(".refused.{number}")),
    };
    let mut paths = (1..).map(numbered);
    let free = paths.find(|path| !path.exists());
    free.unwrap_or_else(|| numbered(1))
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("State").field(&self.file).finish()
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Limiter, policy};

    use super::*;

    fn system(ahead: i64) -> SystemTime {
        let by = Duration::from_secs(ahead.unsigned_abs());
        let now = SystemTime::now();
        if ahead < 0 { now - by } else { now + by }
    }

    /// A server's rule over a file, in its process.
    struct Process {
        state: State,
        limiter: Limiter<Arc<MemoryStore>>,
    }

    fn start(file: &Path, system_clock: fn() -> SystemTime) -> Process {
        let state = State::load_with(file, MemoryStore::new(), system_clock).unwrap();
        let limiter = Limiter::new("user", policy!("1000/1h"), Arc::clone(state.store()));
        Process { state, limiter }
    }

    #[tokio::test]
    async fn receipts_outlive_restarts_and_clocks_that_are_set() {
        let clocks: [fn() -> _; 3] = [SystemTime::now, || system(3_600), || system(-3_600)];
        for clock in clocks {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("counts");
            let before = start(&file, SystemTime::now);
            let slot = before.limiter.acquire("ann").idempotency_key(7).await;
            let mut slot = slot.unwrap().receipt().unwrap();
            let reserved = before.limiter.acquire("ann").cost(900).permit().await;
            let reserved = reserved.unwrap().decision().receipt().unwrap();
            let mut running = before;
            // Somebody sets the clock, and then the server restarts, ten times.
            for _ in 0..10 {
                running.state.system_clock = clock;
                running.state.save();
                drop(running);
                running = start(&file, clock);
                let renew = running.limiter.renew("ann", slot).idempotency_key(7);
                slot = renew.now().unwrap().receipt().unwrap();
            }
            let settled = running.limiter.settle("ann", reserved, 20).now().unwrap();
            assert!(settled.applied());
            assert_eq!(settled.status().used(), 21);
            assert!(running.limiter.refund("ann", slot).now().unwrap().applied());
        }
    }

    #[test]
    fn a_clock_that_is_set_during_a_restart_neither_stalls_nor_extends_windows() {
        const HOUR: u64 = 3_600;
        // By how many seconds the clock is set, and the usage and the age afterwards of an entry that counts for an hour.
        for (set_to, used, age) in [
            ((|| system(-30)) as fn() -> _, 5, 0),
            (|| system(1_800), 5, 1_800),
            // The log has expired. Then the store's clock begins with the system's, which here is the process's.
            (|| system(10_800), 0, HOUR),
            // The file is from the future.
            (|| system(-120), 0, HOUR),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("counts");
            let before = start(&file, SystemTime::now);
            let _ = before.limiter.acquire("ann").cost(5).now().unwrap();
            before.state.save();
            drop(before);
            let after = start(&file, set_to);
            let status = after.limiter.status("ann").now().unwrap();
            assert_eq!(status.used(), used);
            let found = HOUR.checked_sub(status.reset_after().as_secs()).unwrap();
            assert!((age..age + 60).contains(&found), "{age} s: {found} s");
            let ahead = after.state.store.read_clock().as_micros() / 1_000_000;
            let ahead = ahead.saturating_sub(
                Timestamp::from_system_saturating(SystemTime::now()).as_micros() / 1_000_000,
            );
            assert_eq!(ahead > 60, age == 1_800, "{ahead} s");
        }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_holds_neither_the_start_nor_the_end() {
        // Loads and saves ask for the time.
        fn hangs() -> SystemTime {
            std::thread::sleep(Duration::from_secs(1));
            SystemTime::now()
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("counts");
        let state = State::load_with(&file, MemoryStore::new(), hangs).unwrap();
        let limit = Duration::from_millis(50);
        let error = in_time(limit, move || state.save()).await.unwrap_err();
        assert_eq!(error.to_string(), "the disk did not respond within 50ms");
        // Until that save has ended, the file is in use.
        while !file.exists() {
            tokio::time::sleep(limit).await;
        }
        tokio::time::sleep(limit).await;
        let load = move || State::load_with(&file, MemoryStore::new(), hangs).map(drop);
        assert!(in_time(limit, load).await.is_err());
    }

    #[test]
    fn a_file_that_is_mounted_by_itself_is_noticed() {
        let mounts = "22 1 0:21 / / rw - overlay overlay rw\n\
                      40 22 8:1 /counts /data/my\\040counts rw - ext4 /dev/sda1 rw\n\
                      41 22 8:1 /volume /var/lib/limiter rw - ext4 /dev/sda1 rw\n";
        assert!(mounts_at(mounts, Path::new("/data/my counts")));
        assert!(mounts_at(mounts, Path::new("/var/lib/limiter")));
        assert!(!mounts_at(mounts, Path::new("/var/lib/limiter/counts")));
        assert!(!mounts_at("", Path::new("/data/my counts")));
    }
}
