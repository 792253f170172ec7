//! A headless Chromium for one test.

use std::cell::RefCell;
use std::env;
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use thirtyfour::error::WebDriverErrorInner;
use thirtyfour::prelude::*;

use crate::client::PATIENCE;

/// A session of a browser.
pub(crate) struct Browser(WebDriver);

impl Deref for Browser {
    type Target = WebDriver;

    fn deref(&self) -> &WebDriver {
        &self.0
    }
}

/// The program that controls the browser. Killed when dropped.
struct Driver {
    process: Child,
    url: String,
}

impl Driver {
    /// Starts chromedriver. It exits if its port is taken on IPv4 or IPv6, so this tries several times.
    fn start() -> Self {
        (0..5)
            .find_map(|_| Self::try_start())
            .expect("chromedriver says which port it listens on")
    }

    fn try_start() -> Option<Self> {
        let program =
            env::var("LIMITER_CHROMEDRIVER").unwrap_or_else(|_| "chromedriver".to_owned());
        let spawned = Command::new(&program)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = spawned.unwrap_or_else(|error| {
            panic!("{program}: {error}. Run scripts/test --all, which installs it, or set LIMITER_CHROMEDRIVER")
        });
        let mut lines = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let port = lines.find_map(|line| {
            Some(
                line.split_once("started successfully on port ")?
                    .1
                    .to_owned(),
            )
        });
        thread::spawn(move || lines.for_each(drop));
        let url = port.map(|port| format!("http://127.0.0.1:{}", port.trim_end_matches('.')));
        if url.is_none() {
            let _ = process.wait();
        }
        Some(Self { process, url: url? })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a test in a browser, which is closed afterwards even if the test fails.
pub(crate) async fn browse(test: impl AsyncFnOnce(&Browser) -> WebDriverResult<()>) {
    let driver = Driver::start();
    let mut wanted = DesiredCapabilities::chrome();
    // Chromium's sandbox does not start as root, as which containers run tests. It opens only the test's own pages.
    for arg in [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ] {
        wanted.add_arg(arg).unwrap();
    }
    let browser = Browser(WebDriver::new(&driver.url, wanted).await.unwrap());
    let result = AssertUnwindSafe(test(&browser)).catch_unwind().await;
    browser.0.quit().await.unwrap();
    match result {
        Ok(result) => result.unwrap(),
        Err(panic) => resume_unwind(panic),
    }
}

impl Browser {
    /// Waits until the first element that fits is shown with this text in it.
    pub(crate) async fn shows(&self, css: &str, text: &str) -> WebDriverResult<()> {
        let last = RefCell::new(String::new());
        let what = || format!("{css} shows {text:?} instead of {:?}", last.borrow());
        let look = async || {
            let Some(element) = self.find_all(By::Css(css)).await?.into_iter().next() else {
                return Ok(None);
            };
            let shown = element.text().await?;
            let fits = shown.contains(text);
            last.replace(shown);
            Ok(fits.then_some(()))
        };
        until(what, look).await
    }

    /// Waits until an element is not shown.
    pub(crate) async fn hides(&self, css: &str) -> WebDriverResult<()> {
        until(
            || format!("{css} is hidden"),
            async || Ok((!self.find(By::Css(css)).await?.is_displayed().await?).then_some(())),
        )
        .await
    }

    /// Waits until an element is there, and clicks it.
    pub(crate) async fn click(&self, css: &str) -> WebDriverResult<()> {
        until(
            || format!("{css} can be clicked"),
            async || {
                let Some(element) = self.find_all(By::Css(css)).await?.into_iter().next() else {
                    return Ok(None);
                };
                if !element.is_displayed().await? {
                    return Ok(None);
                }
                element.click().await.map(Some)
            },
        )
        .await
    }

    /// Chooses an option by its value.
    pub(crate) async fn select(&self, css: &str, value: &str) -> WebDriverResult<()> {
        self.find(By::Css(format!("{css} option[value='{value}']")))
            .await?
            .click()
            .await
    }
}

/// Waits until there is a value. An element that the page replaced meanwhile is looked for again.
pub(crate) async fn until<T>(
    what: impl Fn() -> String,
    mut look: impl AsyncFnMut() -> WebDriverResult<Option<T>>,
) -> WebDriverResult<T> {
    let began = Instant::now();
    loop {
        match look().await {
            Ok(Some(found)) => return Ok(found),
            Err(error)
                if !matches!(
                    error.as_inner(),
                    WebDriverErrorInner::StaleElementReference(_)
                ) =>
            {
                return Err(error);
            }
            _ => {}
        }
        assert!(
            began.elapsed() < PATIENCE,
            "waited too long until {}",
            what()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
