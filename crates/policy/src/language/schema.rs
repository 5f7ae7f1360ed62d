//! Generates the JSON Schema for editors.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Mapping, POLICY, PolicyKey, Shape};

/// Returns the JSON Schema of policies (draft 2020-12). Editors use it for completion and validation.
pub fn schema() -> Value {
    let mut definitions = BTreeMap::new();
    let mut root = object(&POLICY, &mut definitions);
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("Tidegate policy");
    root["$defs"] = json!(definitions);
    root
}

type Definitions = BTreeMap<&'static str, Value>;

fn object(mapping: &'static Mapping, definitions: &mut Definitions) -> Value {
    let mut properties = serde_json::Map::new();
    for key in mapping.keys {
        properties.insert(key.name.to_owned(), property(key, definitions));
    }
    let required: Vec<_> = mapping.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut object = json!({
        "type": "object",
        "description": mapping.doc,
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn property(key: &'static PolicyKey, definitions: &mut Definitions) -> Value {
    let mut property = shape(&key.shape, definitions);
    let default = match key.default {
        "none" | "required" => String::new(),
        default => format!(" Default: {default}."),
    };
    property["description"] = json!(format!("{}{default} Example: {}", key.doc, key.example));
    property
}

fn shape(of: &'static Shape, definitions: &mut Definitions) -> Value {
    match of {
        Shape::Text(kind) => json!({ "type": "string", "minLength": 1, "title": kind }),
        // YAML reads digits with underscores as a string; the compiler accepts them as a number.
        Shape::Count(least) => json!({
            "oneOf": [
                { "type": "integer", "minimum": least },
                { "type": "string", "pattern": "^[0-9]+(_[0-9]+)+$" },
            ]
        }),
        Shape::Duration => json!({
            "oneOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": "^[0-9][0-9_]* ?(ms|s|m|h|d)?$" },
            ]
        }),
        Shape::Size => json!({
            "oneOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": "^[0-9][0-9_]* ?(B|KiB|MiB|GiB)?$" },
            ]
        }),
        Shape::Percent => json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,4})? ?%$" }),
        Shape::Status => json!({
            "oneOf": [
                { "type": "integer", "minimum": 100, "maximum": 599 },
                { "type": "string", "pattern": "^[1-5]xx$" },
            ]
        }),
        Shape::Choice(names) => json!({ "enum": names }),
        Shape::List(item) => json!({ "type": "array", "items": shape(item, definitions) }),
        Shape::OneOrMany(item) => {
            let one = shape(item, definitions);
            json!({ "oneOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
        }
        Shape::Object(mapping) => reference(mapping, definitions),
        Shape::Named(_, value) => {
            json!({ "type": "object", "additionalProperties": shape(value, definitions) })
        }
        Shape::Either(shapes) => {
            let any: Vec<_> = shapes.iter().map(|of| shape(of, definitions)).collect();
            json!({ "oneOf": any })
        }
    }
}

fn reference(mapping: &'static Mapping, definitions: &mut Definitions) -> Value {
    if !definitions.contains_key(mapping.path) {
        let described = object(mapping, definitions);
        definitions.insert(mapping.path, described);
    }
    // Brackets must be escaped in a URI fragment.
    let fragment = mapping.path.replace('[', "%5B").replace(']', "%5D");
    json!({ "$ref": format!("#/$defs/{fragment}") })
}
