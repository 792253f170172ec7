//! A gateway to language models, with a policy for each customer. Run it in memory or on Redis, and ask it:
//!
//! ```text
//! cargo run --example gateway --all-features -- [memory | redis://…]
//! curl -N -H 'x-api-key: k7' -d 'one two three' localhost:8080/chat
//! ```
//!
//! `POST /chat` reserves tokens for the longest chat, streams the answer, and charges the prompt and the streamed tokens, even if the client
//! disconnects.

use std::time::Duration;

use axum::{Extension, Router, body::Body, routing::post};
use exact_limiter::{Limiter, Policy, open_store, policy};
use futures::{FutureExt, StreamExt, stream};
use limiter_tower::{
    Charge, Charges, LimitLayer, MissingKey, RequestHead, Rule, StatusCode, StoreFailure,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The tokens of the longest chat.
const LONGEST: u64 = 400;

/// The API keys and the policies of customers.
static CUSTOMERS: [(&str, Policy); 2] = [
    ("k7", policy!("1000/1h, 50000/1d")),
    ("k9", policy!("4000/1m")),
];

/// Admits at least as much as each customer's policy: a charge above it has no receipt, so it is never settled.
const ALL: Policy = policy!("6000000/1d");

/// Without it, a client could escape its limit with another key for each request.
fn customer(head: &RequestHead<'_>) -> Option<&'static (&'static str, Policy)> {
    let key = head.header("x-api-key")?;
    CUSTOMERS.iter().find(|(own, _)| key == own)
}

fn routes(tokens: Limiter) -> Result<Router, Failure> {
    let key = |head: &RequestHead<'_>| Some(customer(head)?.0);
    let rule = Rule::new(tokens, key, MissingKey::Reject(StatusCode::UNAUTHORIZED));
    let rule = rule.charge(|head| match customer(head) {
        // A reservation above the smallest limit could never fit.
        Some((_, own)) => Charge::units(LONGEST.min(own.smallest_max())).policy(own),
        None => Charge::units(1),
    });
    let retry_after = Duration::from_secs(1);
    let closed = StoreFailure::Closed { retry_after };
    let layer = LimitLayer::new([rule.settle_in_handler()?], closed);
    Ok(Router::new().route("/chat", post(chat).layer(layer)))
}

async fn chat(Extension(charges): Extension<Charges>, prompt: String) -> Body {
    // Stands in for a language model: it repeats the prompt.
    let words: Vec<_> = prompt.split_inclusive(' ').map(str::to_owned).collect();
    // The model reads the prompt before the first token, so the count begins with it.
    let mut meter = charges.meter(words.len() as u64);
    let left = (LONGEST as usize).saturating_sub(words.len());
    // The meter is dropped after the last token, or when the client hangs up.
    let answer = stream::iter(words).take(left).then(move |token| {
        meter.add(1);
        let pause = tokio::time::sleep(Duration::from_millis(50));
        pause.map(|()| Ok::<_, std::convert::Infallible>(token))
    });
    Body::from_stream(answer)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let store = std::env::args().nth(1).unwrap_or("memory".to_owned());
    let app = routes(Limiter::new("tokens", ALL, open_store(&store)?))?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    Ok(axum::serve(listener, app).await?)
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use exact_limiter::MemoryStore;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_chat_is_charged_what_was_streamed_even_if_the_client_hangs_up() {
        let tokens = &Limiter::new("tokens", ALL, MemoryStore::new()).into_shared();
        let app = routes(tokens.clone()).unwrap();
        let chat = async |key, prompt: &'static str| {
            let request = Request::post("/chat").header("x-api-key", key);
            let request = request.body(Body::from(prompt)).unwrap();
            app.clone().oneshot(request).await.unwrap()
        };
        let until_used = async |used| {
            while tokens.status("k7").await.unwrap().used() != used {
                tokio::task::yield_now().await;
            }
        };
        let answer = chat("k7", "one two three").await;
        let streamed = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
        assert_eq!(streamed.unwrap(), "one two three");
        until_used(6).await;

        let mut words = chat("k7", "a b c d e").await.into_body().into_data_stream();
        assert_eq!(words.next().await.unwrap().unwrap(), "a ");
        until_used(406).await;
        drop(words);
        until_used(12).await;

        let mut running = Vec::new();
        for row in ["k7 200", "k7 200", "k7 429", "k9 200", "k8 401"] {
            let (key, status) = row.split_once(' ').unwrap();
            running.push(chat(key, "a").await);
            assert_eq!(running.last().unwrap().status().as_str(), status, "{key}");
        }
    }
}
