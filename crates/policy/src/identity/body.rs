//! The user that the body of a request names, such as the name in a login form.
//!
//! Services read bodies in many ways: some take the first of several fields and some the last, some ignore the media type or the
//! case of a name, some decompress. If the gateway read a body in one way only, a client could choose a form in which its service
//! finds one user and the gateway another, or none. So a name counts only if it is the only one that any usual service finds, and a
//! body that has none is told apart from one that cannot be read: all of those are counted together, as one user. Names that
//! databases may treat as equal are one user too.

use std::borrow::Cow;
use std::fmt;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use icu_normalizer::DecomposingNormalizerBorrowed;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::{ClientKind, append};
use crate::facts::{BodyFacts, Facts};

/// The most bytes of a body in which a user is looked for.
pub const MAX_USER_BODY: usize = 16 * 1024;

/// The longest name in bytes. An email address has at most 254.
const LONGEST_NAME: usize = 256;

/// The user that a body names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodyUser {
    /// This one; the name is folded.
    Named(String),
    /// None: there is no body, it has no such field, or the caller does not know it.
    Missing,
    /// Services may find one, but it is not known which.
    Unreadable,
}

impl BodyUser {
    /// The user in the field `field` of the body.
    pub(crate) fn read(facts: &Facts<'_>, field: &str) -> Self {
        let body = match facts.body {
            BodyFacts::Unknown | BodyFacts::Complete([]) => return Self::Missing,
            BodyFacts::User(name) => return Self::named(name),
            BodyFacts::Complete(body) if body.len() <= MAX_USER_BODY => body,
            BodyFacts::Complete(_) | BodyFacts::Incomplete => return Self::Unreadable,
        };
        if facts.headers.get_all(CONTENT_ENCODING).iter().any(is_coding) {
            return Self::Unreadable;
        }
        let field = Field(canonical(field));
        let user = match BodyFormat::of(facts.headers) {
            Some(BodyFormat::Form) if !begins_object(body) => field.in_form(body),
            // A service that ignores the media type may read a form.
            Some(BodyFormat::Json) if field.in_form(body) == Some(Self::Missing) => field.in_json(body),
            _ => None,
        };
        user.unwrap_or(Self::Unreadable)
    }

    fn named(name: &str) -> Self {
        let name = folded(name);
        match name.len() {
            0 => Self::Missing,
            1..=LONGEST_NAME => Self::Named(name),
            _ => Self::Unreadable,
        }
    }

    /// Appends the counter key, as [`Identity::append`](super::Identity::append) does. Returns whether there is a user.
    pub(crate) fn append(&self, key: &mut Vec<u8>) -> bool {
        match self {
            Self::Named(name) => append(key, ClientKind::User, Some(name.as_bytes())),
            Self::Missing => false,
            Self::Unreadable => append(key, ClientKind::Anonymous, Some(&[])),
        }
    }
}

/// How a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFormat {
    Form,
    /// Also without a type, or with another one: some services ignore it.
    Json,
}

impl BodyFormat {
    /// `None` if it is not known.
    fn of(headers: &HeaderMap) -> Option<Self> {
        // CGI has one variable for both spellings.
        if ["content_type", "content_encoding"].iter().any(|name| headers.contains_key(*name)) {
            return None;
        }
        let mut values = headers.get_all(CONTENT_TYPE).iter();
        let Some(value) = values.next() else { return Some(Self::Json) };
        if values.next().is_some() {
            return None;
        }
        let value = value.to_str().ok()?.to_ascii_lowercase();
        let mut parts = value.split(';').map(str::trim);
        let media_type = parts.next()?;
        let is_utf8 = |parameter: &str| match parameter.split_once('=') {
            Some((name, charset)) if name.trim() == "charset" => charset.trim().trim_matches('"') == "utf-8",
            _ => !parameter.contains("charset"),
        };
        if media_type.contains(',') || !parts.all(is_utf8) {
            return None;
        }
        match media_type {
            "application/x-www-form-urlencoded" => Some(Self::Form),
            other if other.starts_with("multipart/") => None,
            _ => Some(Self::Json),
        }
    }
}

/// Whether the body has to be decoded by its `Content-Encoding`.
fn is_coding(value: &HeaderValue) -> bool {
    !value.as_bytes().eq_ignore_ascii_case(b"identity")
}

/// Whether a service that ignores the media type may read JSON.
fn begins_object(body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    body.trim_ascii_start().starts_with(b"{")
}

/// The canonical name of a field.
struct Field(String);

impl Field {
    fn is_named(&self, name: &str) -> bool {
        canonical(name) == self.0
    }

    /// The user in a JSON object.
    fn in_json(&self, body: &[u8]) -> Option<BodyUser> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let user = json.deserialize_map(UserVisitor(self)).ok()?;
        json.end().ok()?;
        Some(user)
    }

    /// The user in a form; `None` if there are several or their separators are ambiguous.
    fn in_form(&self, body: &[u8]) -> Option<BodyUser> {
        let mut found = None;
        for pair in body.split(|byte| *byte == b'&') {
            // Some services split at semicolons, too.
            let mut parts = pair.split(|byte| *byte == b';');
            let is_divided = parts.clone().nth(1).is_some();
            if is_divided && parts.any(|part| self.match_of(name_of(part)) != FieldMatch::Other) {
                return None;
            }
            match self.match_of(name_of(pair)) {
                FieldMatch::Other => {}
                FieldMatch::Field if found.is_none() => {
                    let value = pair.iter().position(|byte| *byte == b'=').and_then(|at| pair.get(at + 1..));
                    found = Some(value.unwrap_or_default());
                }
                FieldMatch::Field | FieldMatch::Part => return None,
            }
        }
        let Some(value) = found else { return Some(BodyUser::Missing) };
        let (value, is_valid) = percent_decoded(value);
        let value = String::from_utf8(value).ok().filter(|_| is_valid)?;
        Some(BodyUser::named(&value))
    }

    /// What the encoded name of a form field is.
    fn match_of(&self, name: &[u8]) -> FieldMatch {
        let (name, _) = percent_decoded(name);
        let name = String::from_utf8_lossy(&name);
        if self.is_named(&name) {
            return FieldMatch::Field;
        }
        // `name[]`, `name[0]` and `[name]` are lists or objects, and for some services the field itself.
        let mut parts = name.split(['[', ']']);
        if name.contains(['[', ']']) && parts.any(|part| self.is_named(part)) {
            FieldMatch::Part
        } else {
            FieldMatch::Other
        }
    }
}

/// How the name of a form field matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldMatch {
    Field,
    /// A part of it in brackets, or before them.
    Part,
    Other,
}

/// Finds the user among the members of an object.
struct UserVisitor<'f>(&'f Field);

impl<'de> Visitor<'de> for UserVisitor<'_> {
    type Value = BodyUser;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<BodyUser, A::Error> {
        let mut user = BodyUser::Missing;
        let mut is_found = false;
        while let Some(name) = members.next_key::<Cow<'de, str>>()? {
            if !self.0.is_named(&name) {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            user = match members.next_value::<Value>()? {
                Value::String(name) if !is_found => BodyUser::named(&name),
                _ => BodyUser::Unreadable,
            };
            is_found = true;
        }
        Ok(user)
    }
}

/// What is before the first `=`.
fn name_of(pair: &[u8]) -> &[u8] {
    let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
    pair.get(..end).unwrap_or_default()
}

/// Decodes text of a form. Returns also whether every `%` began an encoded byte; one that does not stays.
fn percent_decoded(text: &[u8]) -> (Vec<u8>, bool) {
    let (mut decoded, mut is_valid) = (Vec::with_capacity(text.len()), true);
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.extend(u8::try_from(high << 4 | low));
                rest = after.get(2..).unwrap_or_default();
            }
            (b'%', ..) => {
                is_valid = false;
                decoded.push(b'%');
            }
            (b'+', ..) => decoded.push(b' '),
            (byte, ..) => decoded.push(*byte),
        }
    }
    (decoded, is_valid)
}

/// The name of a field in the form that is the same for all that services may read as it: some ignore case, and PHP reads a dot, a
/// space and `[` as `_` and ends a name at NUL.
fn canonical(name: &str) -> String {
    let name = name.split('\0').next().unwrap_or_default();
    let name = name.trim_matches(|character: char| character.is_whitespace() || character == '\u{feff}');
    let upper = name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    upper.map(|character| if matches!(character, '.' | ' ' | '[') { '_' } else { character }).collect()
}

/// A name in the form that is the same for all that services may treat as equal: without case, accents, compatibility forms,
/// white space and characters that are not visible.
fn folded(name: &str) -> String {
    let is_visible = |character: &char| {
        !character.is_whitespace()
            && !character.is_control()
            && !matches!(
                character,
                '\u{ad}'
                    | '\u{34f}'
                    | '\u{300}'..='\u{36f}'
                    | '\u{180b}'..='\u{180f}'
                    | '\u{200b}'..='\u{200f}'
                    | '\u{202a}'..='\u{202e}'
                    | '\u{2060}'..='\u{206f}'
                    | '\u{fe00}'..='\u{fe0f}'
                    | '\u{feff}'
                    | '\u{e0000}'..='\u{e0fff}'
            )
    };
    let fold = |text: &str| -> String {
        let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize(text);
        let visible = decomposed.chars().filter(is_visible);
        visible.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
    };
    if name.is_ascii() {
        return name.chars().filter(is_visible).map(|character| character.to_ascii_lowercase()).collect();
    }
    // Case mapping may produce characters that decompose.
    fold(&fold(name))
}

#[cfg(test)]
mod tests;
