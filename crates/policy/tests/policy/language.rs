//! The compiler, the JSON Schema and the reference agree about the language.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tidegate_policy::{NoFiles, compile, reference, schema};

#[test]
fn reference_equals_docs_config_md() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    assert!(fs::read_to_string(path).unwrap() == reference(), "run `cargo xtask docs`");
}

/// Returns, for every key of the schema by its path, a document with only that key set to `value`.
fn documents(value: &Value) -> BTreeMap<String, Value> {
    let mut walker = SchemaWalker { schema: schema(), value: value.clone(), found: BTreeMap::new() };
    walker.step(&walker.schema.clone(), "", &|inner| inner);
    walker.found
}

struct SchemaWalker {
    schema: Value,
    value: Value,
    found: BTreeMap<String, Value>,
}

impl SchemaWalker {
    fn step(&mut self, at: &Value, path: &str, wrap: &dyn Fn(Value) -> Value) {
        if let Some(reference) = at["$ref"].as_str() {
            let name = reference.trim_start_matches("#/$defs/").replace("%5B", "[").replace("%5D", "]");
            let target = self.schema["$defs"][&name].clone();
            assert!(target.is_object(), "{reference} is not defined");
            return self.step(&target, path, wrap);
        }
        for one in at["oneOf"].as_array().into_iter().flatten() {
            self.step(one, path, wrap);
        }
        if at["items"].is_object() {
            self.step(&at["items"], &format!("{path}[0]"), &|inner| wrap(json!([inner])));
        }
        if at["additionalProperties"].is_object() {
            let name = if path.ends_with("endpoints") { "/name" } else { "name" };
            let inner = &at["additionalProperties"];
            self.step(inner, &format!("{path}.{name}"), &|inner| wrap(json!({ name: inner })));
        }
        for (key, inner) in at["properties"].as_object().unwrap_or(&Map::new()) {
            let wrap = |inner| wrap(json!({ key: inner }));
            let path = format!("{path}.{key}").trim_start_matches('.').to_owned();
            self.found.insert(path.clone(), wrap(self.value.clone()));
            self.step(inner, &path, &wrap);
        }
    }
}

#[test]
fn language_keys_are_all_read_by_the_compiler() {
    // No key accepts this value, so a key without a problem is not read.
    let junk = json!({ "no such key": [[]] });
    let documents = documents(&junk);
    assert!(documents.len() > 50, "{}", documents.len());
    for (path, document) in documents {
        let problems = compile("p.yaml", document.to_string().as_bytes(), &NoFiles).unwrap_err();
        let is_reported = problems.iter().any(|problem| problem.path.starts_with(&path));
        assert!(is_reported, "{path} is not read: {document}\n{problems}");
        let known =
            !problems.iter().any(|problem| problem.path == path && problem.what.contains("unknown key"));
        assert!(known, "{path} is not known: {document}");
    }
}

#[test]
fn language_keys_are_all_in_the_reference_with_default_and_example() {
    let page = reference();
    for path in documents(&Value::Null).keys() {
        let key = path.rsplit('.').next().unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("`{key}` is missing"));
        assert_eq!(row.replace("\\|", "").matches('|').count(), 6, "{row}");
        assert!(row.contains(&format!("`{key}: ")), "no example: {row}");
    }
}

#[test]
fn reference_examples_of_the_root_keys_compile() {
    // Only root keys: their examples are complete.
    let mut document = String::new();
    for line in reference()
        .split("\n## The file\n")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| `"))
    {
        let example = line.split(" | ").nth(3).unwrap().trim_matches('`');
        writeln!(document, "{}", example.replace("\\|", "|")).unwrap();
    }
    let compiled = compile("p.yaml", document.as_bytes(), &NoFiles);
    assert!(compiled.is_ok(), "{document}\n{}", compiled.unwrap_err());
}
