//! The OpenAPI document. The harness checks every answer of the other tests against it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::document;

/// Calls `visit` with every `$ref` in a value.
fn references(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "$ref" => visit(text),
                    value => references(value, visit),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, visit)),
        _ => {}
    }
}

#[test]
fn the_document_is_complete() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], "/api/v1");
    let mut count = 0;
    references(document, &mut |reference| {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
        count += 1;
    });
    assert!(count > 50, "{count}");
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{method} {path}");
            assert!(!operation["summary"].as_str().unwrap().is_empty());
            assert!(operation["responses"]["default"].is_object());
            let parameters = operation["parameters"].as_array().unwrap();
            let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(in_path, path.matches('{').count(), "{path}");
        }
    }
}

#[test]
fn parameters_and_bodies_are_described() {
    let jobs = &document()["paths"]["/jobs"]["get"]["parameters"];
    let names: Vec<_> =
        jobs.as_array().unwrap().iter().map(|parameter| parameter["name"].as_str().unwrap()).collect();
    for name in ["type", "status", "chain", "created_from", "after", "limit", "order"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let start =
        &document()["paths"]["/chains"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let schema = document().pointer(start["$ref"].as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
    assert_eq!(schema["required"], serde_json::json!(["type"]));
    assert!(schema["properties"]["input"].is_object());
}
