//! The page in a real browser. Run by `scripts/test --all`, which installs Chromium.

#[path = "../../limiter-server/tests/it/client.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod client;

#[path = "../../limiter-server/tests/it/program.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod program;

#[path = "page/browser.rs"]
mod browser;

use serde_json::{Value, json};
use testbed::server::Server as Redis;
use thirtyfour::prelude::*;

use browser::{Browser, browse, until};
use program::Program;

const CONFIG: &str = r#"
domain: edge
descriptors:
  - key: user
    rate_limit: { policy: "2/1h, 90/1d" }
  - key: path
    value: /login
    descriptors:
      - key: address
        rate_limit: { name: login, policy: "5/1m", counting: attempts }
        quota_mode: true
  - key: tenant
    rate_limit: { unit: hour, requests_per_unit: 1 }
    shadow_mode: true
"#;

/// Sends `times` requests of a key, and returns the code of the last one.
fn send(server: &Program, (key, value): (&str, &str), times: usize) -> Value {
    let body =
        json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": key, "value": value }] }] }).to_string();
    let mut last = Value::Null;
    for _ in 0..times {
        last = server.post("/json", &body).1["overallCode"].clone();
    }
    last
}

impl Browser {
    /// Opens the page, and waits until it shows something.
    async fn open(&self, server: &Program) -> WebDriverResult<()> {
        self.goto(format!("http://{}/", server.admin)).await?;
        self.shows("#live", "Live").await
    }
}

#[tokio::test]
async fn counts_appear_and_a_denied_key_is_unblocked() {
    let server = Program::start(CONFIG, &[]);
    let key = "<img src=x onerror=\"document.title='run'\">,\\";
    send(&server, ("user", key), 5);
    send(&server, ("tenant", "acme"), 4);
    browse(async |page| {
        page.open(&server).await?;
        page.shows("tbody tr:nth-child(2)", "user\n2/1h\n90/1d")
            .await?;
        page.shows("tbody tr:nth-child(2) td:nth-child(2)", "2")
            .await?;
        page.shows("tbody tr:nth-child(2) td:nth-child(3)", "3")
            .await?;
        page.shows("tbody tr:nth-child(3)", "5/1m\ncounts attempts\nquota mode")
            .await?;
        page.shows("tbody tr:nth-child(4)", "1/1h\nshadow mode")
            .await?;
        page.shows("tbody tr:nth-child(4) td:nth-child(4)", "3")
            .await?;
        page.shows("#tile-denied .total", "3 total").await?;

        // Live: later events also appear.
        send(&server, ("user", key), 1);
        page.shows("tbody tr:nth-child(2) td:nth-child(3)", "4")
            .await?;

        page.shows("#denied-rows li", "user\n4×").await?;
        page.click("#denied-rows button").await?;
        // A key is always shown as text. In the address, a comma separates the parts of a key.
        page.shows("#detail h3", "<img src=x onerror=\"document.title='run'\">")
            .await?;
        page.shows("#detail .verdict", "At its limit: next request allowed in")
            .await?;
        page.shows("#detail", "2 of 2 used").await?;
        page.shows("#detail", "2 of 90 used").await?;
        page.shows("#detail .facts", "Fully available\nin").await?;
        assert!(page.find_all(By::Css("img")).await?.is_empty());
        let label = async || {
            page.find(By::Css("#detail svg.log"))
                .await?
                .attr("aria-label")
                .await
        };
        assert!(
            until(|| "the log is drawn".to_owned(), label)
                .await?
                .starts_with("2 of 2 units")
        );

        page.click("#unblock").await?;
        page.click("#ask-no").await?;
        assert_eq!(send(&server, ("user", key), 1), "OVER_LIMIT");
        page.click("#unblock").await?;
        page.click("#ask-yes").await?;
        page.shows("#detail .verdict", "Idle").await?;
        page.shows("#said", "is unblocked").await?;
        page.shows("#no-denials", "No request has been denied")
            .await?;
        assert_eq!(send(&server, ("user", key), 1), "OK");
        page.shows("#detail", "1 of 2 used").await
    })
    .await;
}

#[tokio::test]
async fn a_key_is_found_with_the_keyboard_alone() {
    let server = Program::start(CONFIG, &[]);
    send(&server, ("user", "203.0.113.7"), 1);
    browse(async |page| {
        page.open(&server).await?;
        page.active_element().await?.send_keys("/").await?;
        page.active_element()
            .await?
            .send_keys("unknown" + Key::Enter)
            .await?;
        page.shows("#search-error", "No rule has counted this key")
            .await?;
        page.active_element()
            .await?
            .send_keys(Key::Control + "a")
            .await?;
        page.active_element()
            .await?
            .send_keys("203.0.113.7" + Key::Enter)
            .await?;
        page.shows("#detail h3", "203.0.113.7").await?;
        page.shows("#detail .verdict", "Within its limits").await?;
        // The focus is on the heading of the log. The button comes next.
        page.active_element()
            .await?
            .send_keys(Key::Tab + "")
            .await?;
        page.active_element()
            .await?
            .send_keys(Key::Enter + "")
            .await?;
        page.active_element()
            .await?
            .send_keys(Key::Tab + "")
            .await?;
        page.active_element()
            .await?
            .send_keys(Key::Enter + "")
            .await?;
        page.shows("#detail .verdict", "Idle").await?;
        // The page's address contains the key, so it survives a reload.
        page.refresh().await?;
        page.shows("#detail h3", "203.0.113.7").await?;

        // A key of two rules.
        send(&server, ("user", "203.0.113.7"), 1);
        send(&server, ("tenant", "203.0.113.7"), 1);
        page.select("#rule", "").await?;
        page.click("#find").await?;
        page.shows("#found button:nth-child(2)", "tenant\n1 used of 1/1h")
            .await?;
        page.click("#found button:nth-child(1)").await?;
        page.shows("#detail", "1 of 2 used").await
    })
    .await;
}

#[tokio::test]
async fn the_page_says_when_it_cannot_update() {
    let server = Program::start(CONFIG, &[]);
    let admin = server.admin.to_string();
    browse(async |page| {
        page.open(&server).await?;
        drop(server);
        page.shows("#live", "Not updating").await?;
        page.shows(
            "#cannot-update",
            "Cannot update: the server cannot be reached.\nThese numbers are from",
        )
        .await?;
        let server = Program::start(CONFIG, &["--admin", &admin]);
        page.shows("#live", "Live").await?;
        page.hides("#cannot-update").await?;
        send(&server, ("user", "a"), 1);
        page.shows("#tile-allowed .total", "1 total").await
    })
    .await;
}

#[tokio::test]
async fn the_page_says_when_the_store_is_away() {
    let mut redis = Redis::start().unwrap();
    let server = Program::start(CONFIG, &["--store", &redis.url()]);
    browse(async |page| {
        page.open(&server).await?;
        page.shows("#store-pill", "Redis").await?;
        send(&server, ("user", "a"), 3);
        page.click("#denied-rows button").await?;
        page.shows("#detail", "2 of 2 used").await?;
        redis.kill();
        page.shows("#store-pill", "Redis is down").await?;
        page.shows("#store-away", "this server counts in its own memory")
            .await?;
        redis.restart().unwrap();
        page.hides("#store-away").await?;
        page.shows("#store-pill", "Redis").await
    })
    .await;
}

#[tokio::test]
async fn the_page_shows_a_reload_and_errors_of_the_configuration() {
    let server = Program::start(CONFIG, &[]);
    let write = |text: &str| std::fs::write(server.config(), text).unwrap();
    browse(async |page| {
        page.open(&server).await?;
        send(&server, ("user", "a"), 3);
        page.shows("tbody tr:nth-child(2) td:nth-child(3)", "1")
            .await?;
        write(&CONFIG.replace("2/1h", "2 per fortnight"));
        page.shows("#config-error", "limits.yaml:5:").await?;
        page.shows("tbody tr:nth-child(2)", "user\n2/1h\n90/1d")
            .await?;
        write(&CONFIG.replace("2/1h", "3/1h"));
        page.hides("#config-error").await?;
        page.click("#denied-rows button").await?;
        page.shows("#detail", "2 of 3 used").await?;
        // The counts and the history stay.
        page.shows("tbody tr:nth-child(2)", "user\n3/1h\n90/1d")
            .await?;
        page.shows("tbody tr:nth-child(2) td:nth-child(3)", "1")
            .await?;
        assert_eq!(send(&server, ("user", "a"), 1), "OK");
        assert_eq!(send(&server, ("user", "a"), 1), "OVER_LIMIT");
        page.hides("#config-warnings").await?;
        write(&CONFIG.replace("2/1h", "3/1h+1s"));
        page.shows("#config-warnings", "the lease is never used")
            .await?;
        write(&CONFIG.replace("user", "client"));
        page.shows("#search-error", "No log to show: there is no such rule")
            .await?;
        page.shows("#live", "Live").await?;
        page.shows("tbody tr:nth-child(2)", "client").await
    })
    .await;
}

#[tokio::test]
async fn a_key_of_requests_that_bring_their_limit_is_unblocked() {
    let server = Program::start(CONFIG, &[]);
    let entries = json!([{ "key": "none", "value": "a" }]);
    let descriptor =
        json!({ "entries": entries, "limit": { "requestsPerUnit": 1, "unit": "HOUR" } });
    let body = json!({ "domain": "edge", "descriptors": [descriptor] }).to_string();
    let ask = || server.post("/json", &body).0;
    assert_eq!([ask(), ask()], [200, 429]);
    browse(async |page| {
        page.open(&server).await?;
        page.click("#denied-rows button").await?;
        page.shows("#detail .verdict", "This rule has no limit of its own")
            .await?;
        page.click("#unblock").await?;
        page.click("#ask-yes").await?;
        page.shows("#said", "is unblocked").await?;
        assert_eq!([ask(), ask()], [200, 429]);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn unblocking_needs_the_token_and_no_foreign_page_can() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let guarded = Program::start(CONFIG, &["--admin-token-file", token.to_str().unwrap()]);
    let open = Program::start(CONFIG, &[]);
    send(&guarded, ("user", "a"), 3);
    send(&open, ("user", "a"), 3);
    browse(async |page| {
        page.open(&guarded).await?;
        page.click("#denied-rows button").await?;
        page.click("#unblock").await?;
        page.click("#ask-yes").await?;
        page.shows("#ask-error", "the admin token is missing or wrong").await?;
        page.find(By::Css("#token")).await?.send_keys("wrong" + Key::Enter).await?;
        page.shows("#ask-error", "the admin token is missing or wrong").await?;
        page.find(By::Css("#token")).await?.clear().await?;
        page.find(By::Css("#token")).await?.send_keys("secret" + Key::Enter).await?;
        page.shows("#detail .verdict", "Idle").await?;

        // The page of one server is foreign to the other one.
        let attack = r#"
            const [url, headers, done] = arguments;
            const body = JSON.stringify({ domain: "edge", path: "user", key: "a" });
            Promise.allSettled([
                fetch(url, { method: "POST", headers, body }),
                fetch(url, { method: "POST", mode: "no-cors", headers, body }),
            ]).then(results => done(results.map(result => result.status === "rejected" || result.value.type === "opaque")));
        "#;
        page.goto(format!("http://{}/healthz", guarded.http)).await?;
        for headers in [json!({ "x-limiter-admin": "1", "content-type": "application/json" }), json!({})] {
            let arguments = vec![json!(format!("http://{}/reset", open.admin)), headers];
            assert_eq!(page.execute_async(attack, arguments).await?.json(), &json!([true, true]));
        }
        assert_eq!(send(&open, ("user", "a"), 1), "OVER_LIMIT");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn the_page_fits_a_phone_and_many_rules() {
    let rules: String = (0..1_000)
        .map(|i| format!("  - key: rule_{i}\n    rate_limit: {{ policy: 5/1s }}\n"))
        .collect();
    let server = Program::start(&format!("domain: edge\ndescriptors:\n{rules}"), &[]);
    browse(async |page| {
        page.set_window_rect(0, 0, 500, 900).await?;
        page.open(&server).await?;
        page.shows("#rules-note", "200 of 1,000 rules").await?;
        // Recently denied keys are in the first screen. A column appears with its first count.
        let is_first = "return document.getElementById('denials').getBoundingClientRect().top < 700";
        assert_eq!(page.execute(is_first, vec![]).await?.json(), &json!(true));
        let columns = "return [2, 3, 4].map(i => getComputedStyle(document.querySelector(`#rules tbody tr:nth-child(2) td:nth-child(${i})`)).display !== 'none')";
        assert_eq!(page.execute(columns, vec![]).await?.json(), &json!([false, false, false]));
        send(&server, ("rule_0", "a"), 1);
        page.shows("#tile-allowed .total", "1 total").await?;
        assert_eq!(page.execute(columns, vec![]).await?.json(), &json!([true, false, false]));
        page.find(By::Css("#filter"))
            .await?
            .send_keys("rule_77")
            .await?;
        page.shows("#rules tbody", "rule_779").await?;
        assert_eq!(page.find_all(By::Css("#rules tbody tr")).await?.len(), 12);
        let width = "return document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(page.execute(width, vec![]).await?.json(), &json!(true));
        // The policy of the page admits its own style and script.
        until(
            || "the page is styled".to_owned(),
            async || {
                let family = page
                    .find(By::Css("#live"))
                    .await?
                    .css_value("border-radius")
                    .await?;
                Ok((family == "999px").then_some(()))
            },
        )
        .await
    })
    .await;
}
