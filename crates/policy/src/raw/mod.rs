//! The YAML tree of a policy. Every value and every key has its source position.
//!
//! Scalars stay text, with a flag for quotes; the compiler interprets them. So `1_000`, `60s` and `"60"` remain
//! different, and a problem can quote exactly what was written.

mod fields;
mod parse;
mod report;

use std::borrow::Cow;

pub(crate) use fields::{Fields, nearest};
pub(crate) use parse::{parse, parse_prefix};
pub(crate) use report::{Finding, NodeRef, ProblemReport};

/// A value with its position.
#[derive(Clone, Debug)]
pub(crate) struct YamlNode<'s> {
    pub(crate) id: u32,
    pub(crate) position: SourcePosition,
    pub(crate) value: YamlValue<'s>,
}

/// The content of a node.
#[derive(Clone, Debug)]
pub(crate) enum YamlValue<'s> {
    Scalar { text: Cow<'s, str>, quoted: bool },
    List(Vec<YamlNode<'s>>),
    Mapping(Vec<MappingEntry<'s>>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct MappingEntry<'s> {
    pub(crate) key: MappingKey<'s>,
    pub(crate) value: YamlNode<'s>,
}

/// A key of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct MappingKey<'s> {
    pub(crate) id: u32,
    pub(crate) position: SourcePosition,
    pub(crate) text: Cow<'s, str>,
}

/// A position in the source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourcePosition {
    /// In bytes from the start of the file.
    pub(crate) offset: usize,
    /// Counted from 1; 0 for the file as a whole.
    pub(crate) line: u32,
    /// In characters, counted from 1.
    pub(crate) column: u32,
    /// In characters, on its first line.
    pub(crate) length: u32,
}

impl YamlNode<'_> {
    /// Whether the value is empty or null.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, YamlValue::Scalar { text, quoted: false } if matches!(&**text, "" | "~" | "null"))
    }

    /// Whether the value is this text.
    pub(crate) fn is_text(&self, expected: &str) -> bool {
        matches!(&self.value, YamlValue::Scalar { text, .. } if text == expected)
    }

    /// Describes the value for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "an empty value".to_owned(),
            YamlValue::Scalar { text, .. } => crate::render::quote(text),
            YamlValue::List(_) => "a list".to_owned(),
            YamlValue::Mapping(_) => "a mapping".to_owned(),
        }
    }
}
