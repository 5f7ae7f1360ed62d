//! The language says the same to the decoder, to editors and to readers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tidegate_policy::{NoFiles, compile, reference, schema};

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    assert!(fs::read_to_string(path).unwrap() == reference(), "run `cargo xtask docs`");
}

/// Every key of the schema by its path, as a document that holds only the way to it and `value` behind it.
fn documents(value: &Value) -> BTreeMap<String, Value> {
    let mut walk = Walk { schema: schema(), value: value.clone(), found: BTreeMap::new() };
    walk.step(&walk.schema.clone(), "", &|inner| inner);
    walk.found
}

struct Walk {
    schema: Value,
    value: Value,
    found: BTreeMap<String, Value>,
}

impl Walk {
    fn step(&mut self, at: &Value, path: &str, wrap: &dyn Fn(Value) -> Value) {
        if let Some(reference) = at["$ref"].as_str() {
            let name = reference.trim_start_matches("#/$defs/").replace("%5B", "[").replace("%5D", "]");
            let target = self.schema["$defs"][&name].clone();
            assert!(target.is_object(), "{reference} leads nowhere");
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
fn every_key_of_the_language_is_read_by_the_decoder() {
    // Nothing of the language takes this, so a key that says nothing of it is not looked at.
    let junk = json!({ "no such key": [[]] });
    let documents = documents(&junk);
    assert!(documents.len() > 50, "{}", documents.len());
    for (path, document) in documents {
        let problems = compile("p.yaml", document.to_string().as_bytes(), &NoFiles).unwrap_err();
        let told = problems.iter().any(|problem| problem.path.starts_with(&path));
        assert!(told, "{path} is not read: {document}\n{problems}");
        let known =
            !problems.iter().any(|problem| problem.path == path && problem.what.contains("unknown key"));
        assert!(known, "{path} is not known: {document}");
    }
}

#[test]
fn every_key_stands_in_the_reference_with_default_and_example() {
    let page = reference();
    for path in documents(&Value::Null).keys() {
        let key = path.rsplit('.').next().unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("`{key}` stands nowhere"));
        assert_eq!(row.replace("\\|", "").matches('|').count(), 6, "{row}");
        assert!(row.contains(&format!("`{key}: ")), "no example: {row}");
    }
}

#[test]
fn every_example_of_the_reference_can_be_written_where_it_stands() {
    // Root keys alone: their examples are whole, but for names they refer to.
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
