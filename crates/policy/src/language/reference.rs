//! Generates docs/config.md.

use std::fmt::Write as _;

use super::{Mapping, POLICY, Shape};

/// Returns the language reference as Markdown: every key with its values, default, example and meaning.
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    let mut written = Vec::new();
    section(&POLICY, &mut page, &mut written);
    page
}

const HEAD: &str = include_str!("head.md");

fn section(mapping: &'static Mapping, page: &mut String, written: &mut Vec<&'static str>) {
    if written.contains(&mapping.path) {
        return;
    }
    written.push(mapping.path);
    let title = if mapping.path.is_empty() { "The file".to_owned() } else { format!("`{}`", mapping.path) };
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {title}\n\n{}\n\n", mapping.doc);
    page.push_str("| key | value | default | example | meaning |\n|---|---|---|---|---|\n");
    for key in mapping.keys {
        let default = match key.default {
            word @ ("none"
            | "required"
            | "any"
            | "always"
            | "each client"
            | "every request"
            | "before forwarding"
            | "unlimited"
            | "the usual error body") => word.to_owned(),
            text if text.contains('`') => text.to_owned(),
            value => format!("`{value}`"),
        };
        let row = [
            format!("`{}`", key.name),
            describe(&key.shape),
            default,
            format!("`{}: {}`", key.name, key.example),
            key.doc.to_owned(),
        ];
        let _ = writeln!(page, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    for key in mapping.keys {
        mappings(&key.shape, &mut |inner| section(inner, page, written));
    }
}

fn mappings(shape: &'static Shape, visit: &mut dyn FnMut(&'static Mapping)) {
    match shape {
        Shape::Object(mapping) => visit(mapping),
        Shape::List(inner) | Shape::OneOrMany(inner) | Shape::Named(_, inner) => mappings(inner, visit),
        Shape::Either(shapes) => shapes.iter().for_each(|shape| mappings(shape, visit)),
        _ => {}
    }
}

/// Describes a type.
fn describe(shape: &Shape) -> String {
    match shape {
        Shape::Text(kind) => (*kind).to_owned(),
        Shape::Count(_) => "whole number".to_owned(),
        Shape::Duration => "duration".to_owned(),
        Shape::Size => "size".to_owned(),
        Shape::Percent => "percentage".to_owned(),
        Shape::Status => "status code".to_owned(),
        Shape::Choice(names) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        Shape::List(inner) => format!("list: {}", describe(inner)),
        Shape::OneOrMany(inner) => format!("one or a list: {}", describe(inner)),
        Shape::Object(mapping) if mapping.path.is_empty() => "mapping".to_owned(),
        Shape::Object(mapping) => format!("mapping: `{}`", mapping.path),
        Shape::Named(what, inner) => format!("{what} name → {}", describe(inner)),
        Shape::Either(shapes) => shapes.iter().map(describe).collect::<Vec<_>>().join("; or "),
    }
}
