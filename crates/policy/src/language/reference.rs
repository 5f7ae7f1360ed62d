//! The language as a page to read: docs/config.md.

use std::fmt::Write as _;

use super::{Mapping, POLICY, Shape};

/// The language as Markdown: every key with its values, default, example and meaning.
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    let mut told = Vec::new();
    section(&POLICY, &mut page, &mut told);
    page
}

const HEAD: &str = include_str!("head.md");

fn section(mapping: &'static Mapping, page: &mut String, told: &mut Vec<&'static str>) {
    if told.contains(&mapping.path) {
        return;
    }
    told.push(mapping.path);
    let title = if mapping.path.is_empty() { "The file".to_owned() } else { format!("`{}`", mapping.path) };
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {title}\n\n{}\n\n", mapping.doc);
    page.push_str("| key | value | default | example | meaning |\n|---|---|---|---|---|\n");
    for key in mapping.keys {
        let default = match key.default {
            word @ ("none" | "required" | "any" | "always" | "each client" | "every request") => {
                word.to_owned()
            }
            words if words.contains('`') => words.to_owned(),
            value => format!("`{value}`"),
        };
        let row = [
            format!("`{}`", key.name),
            words(&key.shape),
            default,
            format!("`{}: {}`", key.name, key.example),
            key.doc.to_owned(),
        ];
        let _ = writeln!(page, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    for key in mapping.keys {
        mappings(&key.shape, &mut |inner| section(inner, page, told));
    }
}

fn mappings(shape: &'static Shape, found: &mut dyn FnMut(&'static Mapping)) {
    match shape {
        Shape::Object(mapping) => found(mapping),
        Shape::List(inner) | Shape::OneOrMany(inner) | Shape::Named(_, inner) => mappings(inner, found),
        Shape::Either(shapes) => shapes.iter().for_each(|shape| mappings(shape, found)),
        _ => {}
    }
}

/// A shape in words.
fn words(shape: &Shape) -> String {
    match shape {
        Shape::Text(kind) => (*kind).to_owned(),
        Shape::Count(_) => "whole number".to_owned(),
        Shape::Duration => "duration".to_owned(),
        Shape::Size => "size".to_owned(),
        Shape::Percent => "percent".to_owned(),
        Shape::Status => "status".to_owned(),
        Shape::Choice(names) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        Shape::List(inner) => format!("list: {}", words(inner)),
        Shape::OneOrMany(inner) => format!("one or a list: {}", words(inner)),
        Shape::Object(mapping) if mapping.path.is_empty() => "mapping".to_owned(),
        Shape::Object(mapping) => format!("mapping: `{}`", mapping.path),
        Shape::Named(what, inner) => format!("by name of the {what}: {}", words(inner)),
        Shape::Either(shapes) => shapes.iter().map(words).collect::<Vec<_>>().join("; or "),
    }
}
