//! An MCP server on axum that limits each customer's calls of each tool, and how many long calls a customer runs at the same time.
//!
//! All tools share one path, so no layer can tell them apart: `call_tool` limits them. A denial is the protocol's error, and its data
//! contains the wait. Every other method, such as `tools/list`, is free.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use exact_limiter::time::WithClock;
use exact_limiter::{AllOf, Limiter, MemoryStore, SharedStore, policy};
use limiter_testkit::MockClock;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorCode, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use serde_json::json;
use tokio::sync::Semaphore;
use uuid::Uuid;

/// In the range of JSON-RPC for servers' own errors.
const LIMITED: ErrorCode = ErrorCode(-32_029);

#[derive(Clone, Debug)]
struct Tools {
    calls: Limiter,
    running: Limiter,
    /// Ends a report, in place of its work.
    ready: Arc<Semaphore>,
    router: ToolRouter<Self>,
}

#[tool_router]
impl Tools {
    #[tool(description = "Finds a page")]
    async fn search(&self) -> String {
        "a page".to_owned()
    }

    #[tool(description = "Writes a report, which takes long")]
    async fn report(&self) -> String {
        if let Ok(ready) = self.ready.acquire().await {
            ready.forget();
        }
        "a report".to_owned()
    }

    #[tool(description = "Ends eight reports")]
    async fn finish(&self) -> String {
        self.ready.add_permits(8);
        "done".to_owned()
    }
}

#[tool_handler(router = self.router)]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let fails =
            |error: exact_limiter::Error| ErrorData::internal_error(error.to_string(), None);
        // In production, the customer whom a middleware has authenticated.
        let parts = context.extensions.get::<Parts>();
        let customer = parts.and_then(|parts| parts.headers.get("x-api-key"));
        let customer = customer.ok_or_else(|| ErrorData::invalid_request("no API key", None))?;
        let customer = customer.as_bytes().to_vec();
        // A client may not make a log for each name that it invents.
        if !self.router.has_route(&request.name) {
            return Err(ErrorData::invalid_params("no such tool", None));
        }
        let is_long = request.name == "report";
        let mut call = AllOf::new().refundable();
        if is_long {
            let slot = self.running.acquire(&customer);
            call = call.with(slot.idempotency_key(Uuid::new_v4()));
        }
        let tool = (&customer[..], &*request.name);
        let decision = call.with(self.calls.acquire(tool)).await.map_err(fails)?;
        let mut charges = decision.into_result().map_err(|denied| {
            let wait = denied.retry_after().as_micros().div_ceil(1_000) as u64;
            ErrorData::new(
                LIMITED,
                denied.to_string(),
                Some(json!({ "retry_after_ms": wait })),
            )
        })?;
        let run = self
            .router
            .call(ToolCallContext::new(self, request, context));
        if is_long {
            return charges.swap_remove(0).hold(run).await.map_err(fails)?;
        }
        run.await
    }
}

fn routes(store: SharedStore) -> Router {
    let tools = Tools {
        calls: Limiter::new("calls", policy!("120/1m"), store.clone()),
        running: Limiter::new("running", policy!("8/30s"), store),
        ready: Arc::new(Semaphore::new(0)),
        router: Tools::tool_router(),
    };
    let sessions = Arc::new(LocalSessionManager::default());
    let service =
        StreamableHttpService::new(move || Ok(tools.clone()), sessions, Default::default());
    Router::new().nest_service("/mcp", service)
}

/// A client that shares no code with the server.
const CLIENT: &str = r#"
import asyncio, sys
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

async def denied(call):
    try:
        await call
    except MCPError as error:
        return error.code, error.message.split(":")[0], error.data["retry_after_ms"]

async def customer(key):
    http = httpx2.AsyncClient(headers={"x-api-key": key}, timeout=60)
    async with http, Client(streamable_http_client(sys.argv[1], http_client=http), read_timeout_seconds=60) as client:
        for _ in range(120):
            await client.call_tool("search", {})
        assert await denied(client.call_tool("search", {})) == (-32029, "calls", 60000)
        for _ in range(130):
            assert len((await client.list_tools(cache_mode="bypass")).tools) == 3
        for _ in range(2):
            reports = [asyncio.create_task(denied(client.call_tool("report", {}))) for _ in range(9)]
            ninth, running = await asyncio.wait(reports, return_when=asyncio.FIRST_COMPLETED)
            assert [report.result() for report in ninth] == [(-32029, "running", 30000)], ninth
            await client.call_tool("finish", {})
            assert await asyncio.gather(*running) == [None] * 8

asyncio.run(customer(sys.argv[2]))
"#;

#[tokio::test]
async fn a_customers_calls_of_a_tool_and_its_running_calls_are_limited() {
    let clock = MockClock::new();
    let store = WithClock::new(MemoryStore::new(), clock.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = routes(Arc::new(store));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let installed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/tools/python/bin/python3"
    );
    let python = std::env::var("LIMITER_PYTHON").unwrap_or(installed.to_owned());
    for key in ["k7", "k9", "k7"] {
        let mut client = Command::new(&python);
        client.args(["-c", CLIENT, &url, key]);
        let run = tokio::task::spawn_blocking(move || client.output());
        let output = run.await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{key}: {text}");
        if key == "k9" {
            clock.advance(Duration::from_secs(60));
        }
    }
}
