//! A policy as it was written: a tree in which every value and every key knows its place.
//!
//! The tree keeps scalars as text, with or without quotes, and leaves their meaning to whoever decodes them: so
//! `1_000`, `60s` and `"60"` are told apart, and a problem can show exactly what was written.

mod fields;
mod parse;
mod report;

use std::borrow::Cow;

pub(crate) use fields::{Fields, nearest};
pub(crate) use parse::parse;
pub(crate) use report::{Finding, Mark, Report};

/// A value.
#[derive(Clone, Debug)]
pub(crate) struct Node<'s> {
    pub(crate) id: u32,
    pub(crate) place: SourcePosition,
    pub(crate) value: Value<'s>,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(crate) enum Value<'s> {
    Scalar { text: Cow<'s, str>, quoted: bool },
    List(Vec<Node<'s>>),
    Mapping(Vec<Entry<'s>>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'s> {
    pub(crate) key: Key<'s>,
    pub(crate) value: Node<'s>,
}

/// A key.
#[derive(Clone, Debug)]
pub(crate) struct Key<'s> {
    pub(crate) id: u32,
    pub(crate) place: SourcePosition,
    pub(crate) text: Cow<'s, str>,
}

/// Where something stands.
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

impl Node<'_> {
    /// Whether nothing was written here.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, quoted: false } if matches!(&**text, "" | "~" | "null"))
    }

    /// What was written here, in words.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, .. } => crate::render::quote(text),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }
}
