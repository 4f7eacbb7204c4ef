//! The OpenAPI document, generated from the routes and their types.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::problem::Problem;
use super::route::{Answer, Call, Description, Given, Need, NoBody, NoQuery, Route};
use super::{PREFIX, routes};
use crate::guard::Facts;

/// Where the schemas of the document are.
const SCHEMAS: &str = "/components/schemas";

pub(crate) struct Document(Value);

pub(crate) async fn get(call: Call, _: Given<NoQuery, NoBody>) -> Result<Document, Problem> {
    Ok(Document(document(&call.facts)))
}

impl Answer for Document {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0.to_string()).into_response()
    }

    fn describe(_: &mut SchemaGenerator) -> Vec<(axum::http::StatusCode, &'static str, Schema)> {
        let schema = json_schema!({"type": "object", "required": ["openapi", "paths"]});
        vec![(axum::http::StatusCode::OK, "application/json", schema)]
    }
}

/// Returns the document for a router, as the caller reaches it.
fn document(facts: &Facts) -> Value {
    // Anyone can ask for it, so it is generated once. Only the path of the router and the name of the cookie differ.
    static GENERATED: OnceLock<Value> = OnceLock::new();
    let mut document = GENERATED.get_or_init(generated).clone();
    if let Some(fields) = document.as_object_mut() {
        fields.insert("servers".to_owned(), json!([{"url": format!("{}{PREFIX}", facts.base)}]));
    }
    if let Some(session) = document.pointer_mut("/components/securitySchemes/session") {
        *session = json!({"type": "apiKey", "in": "cookie", "name": facts.cookie_name().as_str()});
    }
    document
}

fn generated() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let operation = operation(&route, &(route.describe)(&mut generator), &problem);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(route.method.as_str().to_ascii_lowercase(), operation);
        }
    }
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Windlass",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Starts, queries and operates background jobs.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {},
            },
        },
    })
}

fn operation(route: &Route, described: &Description, problem: &Schema) -> Value {
    let mut responses = Map::new();
    for (status, content_type, schema) in &described.answers {
        let content = json!({*content_type: {"schema": schema}});
        let text = status.canonical_reason().unwrap_or("Answer");
        responses.insert(status.as_str().to_owned(), json!({"description": text, "content": content}));
    }
    let content = json!({"application/problem+json": {"schema": problem}});
    responses
        .insert("default".to_owned(), json!({"description": "A problem (RFC 9457)", "content": content}));
    let mut parameters: Vec<Value> = path_names(route.path)
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    parameters.extend(query_parameters(&described.query));
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(object) = operation.as_object_mut() {
        if let Some(body) = &described.body {
            let content = json!({"application/json": {"schema": body}});
            object.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
        }
        if let Need::AtLeast(role) = route.need {
            object.insert("security".to_owned(), json!([{"token": []}, {"session": []}]));
            object.insert("x-role".to_owned(), json!(role));
        }
    }
    operation
}

/// Returns the parameters of a query: one per field of its type.
fn query_parameters(schema: &Schema) -> Vec<Value> {
    let fields = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|known| known == name));
    let parameter = |(name, schema): (&String, &Value)| {
        let description = schema.get("description").cloned().unwrap_or_default();
        json!({
            "name": name,
            "in": "query",
            "required": is_required(name),
            "description": description,
            "schema": schema,
        })
    };
    fields.into_iter().flatten().map(parameter).collect()
}

fn path_names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// Returns a unique name: `GET /chains/{id}/graph` is `getChainsIdGraph`.
fn operation_id(route: &Route) -> String {
    let mut name = route.method.as_str().to_ascii_lowercase();
    for word in route.path.split(['/', '{', '}', '.']).filter(|word| !word.is_empty()) {
        let (first, rest) = word.split_at(1);
        name.push_str(&first.to_ascii_uppercase());
        name.push_str(rest);
    }
    name
}
