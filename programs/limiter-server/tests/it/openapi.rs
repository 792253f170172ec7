//! `docs/openapi.yaml` against the tables of `docs/v1.md`, and against a server.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::server::Server;
use crate::{tools, v1};

const OPENAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.yaml");

/// Returns the texts of a list, or the names of an object's fields.
fn set(value: &Value) -> BTreeSet<&str> {
    match value {
        Value::Object(fields) => fields.keys().map(String::as_str).collect(),
        _ => value
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect(),
    }
}

#[test]
fn the_description_has_the_operations_fields_and_statuses_of_the_page() {
    let text = std::fs::read_to_string(OPENAPI).unwrap();
    let openapi: Value = serde_saphyr::from_str(&text).unwrap();
    let schemas = &openapi["components"]["schemas"];
    let heads = [
        ("Decision", "| field | type "),
        ("Limit", "| field of `limits` "),
    ];
    for (schema, rows) in heads.map(|(schema, head)| (&schemas[schema], v1::rows(head))) {
        let fields: BTreeSet<_> = rows.iter().map(|row| &*row[0]).collect();
        assert_eq!(
            [&fields; 2],
            [&set(&schema["properties"]), &set(&schema["required"])]
        );
        for row in &rows {
            let kind = match &*row[1] {
                "text" => "string",
                "list" => "array",
                kind => kind,
            };
            let is_never_null = row[3].starts_with("never");
            let expected = if is_never_null {
                json!(kind)
            } else {
                json!([kind, "null"])
            };
            assert_eq!(schema["properties"][&row[0]]["type"], expected, "{row:?}");
        }
    }
    let paths = &openapi["paths"];
    let statuses = v1::rows("| status | cause ");
    let mut expected: BTreeSet<_> = statuses.iter().map(|row| &*row[0]).collect();
    expected.insert("200");
    for path in set(paths) {
        assert_eq!(set(&paths[path]["post"]["responses"]), expected, "{path}");
    }
    let ops = set(&schemas["Decision"]["properties"]["op"]["enum"]);
    assert_eq!(set(paths).len(), ops.len() + 1);
    let rows = v1::rows("| field | operations ");
    for op in ops {
        let body = &paths[&format!("/v1/{op}")]["post"]["requestBody"]["content"];
        let schema = body["application/json"]["schema"]["$ref"].as_str().unwrap();
        let schema = &schemas[schema.rsplit('/').next().unwrap()];
        let has = |row: &&Vec<String>| row[1] == "all" || row[1].split(", ").any(|of| of == op);
        let fields: BTreeSet<_> = rows.iter().filter(has).map(|row| &*row[0]).collect();
        assert_eq!(set(&schema["properties"]), fields, "{op}");
        let is_optional =
            |name: &&str| matches!(*name, "id" | "wait_ms") || (*name == "cost" && op != "settle");
        let required: BTreeSet<_> = fields
            .into_iter()
            .filter(|name| !is_optional(name))
            .collect();
        assert_eq!(set(&schema["required"]), required, "{op}");
    }
}

#[test]
fn schemathesis_finds_nothing() {
    if std::env::var_os("LIMITER_TEST_ALL").is_none() {
        return;
    }
    let server = Server::start(v1::config(), &[]);
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(tools::python());
    command.current_dir(folder.path());
    command.args(["-m", "schemathesis.cli", "run", OPENAPI, "--checks", "all"]);
    command.args(["--url", &format!("http://{}", server.http)]);
    command.args(["--request-timeout", "60", "--max-examples", "100"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let tested_all = text.contains("8 selected / 8 total") && text.contains("No issues found");
    assert!(output.status.success() && tested_all, "{text}");
}
