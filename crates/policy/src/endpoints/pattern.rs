//! Endpoint patterns: `[METHOD ]/segment/{parameter}/*/**`.

use std::fmt;
use std::str::FromStr;

use crate::path::{PathError, fold_segment, normalize};
use crate::plan::PathCase;

/// The maximum number of segments, which bounds the depth of a search.
const MOST_SEGMENTS: usize = 64;

/// The extensions of scripts behind whose name a path can go on.
const SCRIPTS: [&str; 7] = ["php", "phtml", "cgi", "pl", "py", "asp", "aspx"];

/// Matches requests by an optional method and the path.
///
/// A segment is a literal, `{name}` or `*` (exactly one segment), or, at the end, `**` (any number of segments, including
/// none). Literals are normalised like paths. A trailing slash is ignored: `/a` and `/a/` are the same pattern and match
/// both paths.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndpointPattern {
    method: Option<Box<str>>,
    segments: Vec<Segment>,
}

/// One part of a pattern's path.
#[derive(Debug, Clone, Eq)]
pub(crate) enum Segment {
    Literal(Box<str>),
    /// `{name}`, or `*`, which has no name.
    One(Option<Box<str>>),
    Rest,
}

impl PartialEq for Segment {
    /// The name of a parameter is ignored: it does not change what the segment matches.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(one), Self::Literal(other)) => one == other,
            (Self::One(_), Self::One(_)) | (Self::Rest, Self::Rest) => true,
            _ => false,
        }
    }
}

impl std::hash::Hash for Segment {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        if let Self::Literal(text) = self {
            text.hash(state);
        }
    }
}

/// Why a pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern is empty.
    #[error("the pattern is empty")]
    Empty,
    /// The text before the path is not a method.
    #[error("invalid method `{method}`")]
    Method {
        /// The text.
        method: String,
    },
    /// The path does not begin with a slash.
    #[error("path `{path}` must begin with `/`")]
    NotAbsolute {
        /// The path as written.
        path: String,
    },
    /// `**` is not the last segment.
    #[error("`**` is only allowed as the last segment")]
    RestNotLast,
    /// A wildcard is only part of a segment.
    #[error("`{segment}`: `*` must be a whole segment")]
    PartialWildcard {
        /// The segment as written.
        segment: String,
    },
    /// Braces that do not enclose a whole segment, or an invalid name.
    #[error("`{segment}`: a parameter must be a whole segment")]
    Parameter {
        /// The segment as written.
        segment: String,
    },
    /// Two parameters have the same name.
    #[error("duplicate parameter name `{name}`")]
    DuplicateParameter {
        /// The name.
        name: String,
    },
    /// `//`, `.` or `..`: no normalised path has such a segment.
    #[error("segment `{segment}` never matches: paths are normalised first")]
    NeverMatches {
        /// The segment as written.
        segment: String,
    },
    /// A segment that is not valid in a path.
    #[error("`{segment}`: {cause}")]
    Segment {
        /// The segment as written.
        segment: String,
        /// The cause.
        cause: PathError,
    },
    /// Too many segments.
    #[error("the pattern has {segments} segments; the maximum is {MOST_SEGMENTS}")]
    TooLong {
        /// The number of segments.
        segments: usize,
    },
}

impl PatternError {
    /// How to fix it.
    pub fn hint(&self) -> String {
        match self {
            Self::Empty => "write a path like `/api/v1/search`, or `/**` for every path".to_owned(),
            Self::Method { .. } => {
                "write the method in uppercase before the path, as in `POST /api/v1/orders`".to_owned()
            }
            Self::NotAbsolute { path } => format!("write `/{path}`"),
            Self::RestNotLast => "use `*` for exactly one segment in between".to_owned(),
            Self::PartialWildcard { .. } => "write `/*/` for one segment, or end with `/**`".to_owned(),
            Self::Parameter { .. } => {
                "write for example `/users/{id}/orders`; use letters, digits and `_` in the name".to_owned()
            }
            Self::DuplicateParameter { .. } => "give one of them another name, or use `*`".to_owned(),
            Self::NeverMatches { .. } => "write the normalised path".to_owned(),
            Self::Segment { cause: PathError::Character { found: '?' | '#', .. }, .. } => {
                "only the path is matched; remove the query".to_owned()
            }
            Self::Segment { .. } => "percent-encode the segment".to_owned(),
            Self::TooLong { .. } => "end it earlier with `/**`".to_owned(),
        }
    }
}

impl EndpointPattern {
    /// The pattern that matches every request.
    pub(crate) fn everything() -> Self {
        Self { method: None, segments: vec![Segment::Rest] }
    }

    /// Parses a pattern.
    ///
    /// ```
    /// use tidegate_policy::EndpointPattern;
    ///
    /// let pattern = EndpointPattern::parse("POST /api/v1/orders/{id}")?;
    /// assert_eq!(pattern.method(), Some("POST"));
    /// assert_eq!(pattern, EndpointPattern::parse("POST /%61pi/v1/orders/*/")?);
    /// # Ok::<(), tidegate_policy::PatternError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        let (method, path) = match text.split_once(char::is_whitespace) {
            Some((method, path)) if !method.starts_with('/') => {
                (Some(checked_method(method)?), path.trim_start())
            }
            _ => (None, text),
        };
        let Some(relative) = path.strip_prefix('/') else {
            return Err(PatternError::NotAbsolute { path: path.to_owned() });
        };
        let relative = relative.strip_suffix('/').unwrap_or(relative);
        let written: Vec<_> = if relative.is_empty() { Vec::new() } else { relative.split('/').collect() };
        if written.len() > MOST_SEGMENTS {
            return Err(PatternError::TooLong { segments: written.len() });
        }
        let segments = written.iter().map(|text| Segment::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if segments.iter().rev().skip(1).any(|segment| *segment == Segment::Rest) {
            return Err(PatternError::RestNotLast);
        }
        let names: Vec<_> = segments.iter().filter_map(Segment::name).collect();
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(PatternError::DuplicateParameter { name: (*name).to_owned() });
        }
        Ok(Self { method, segments })
    }

    /// The method; `None` if any method matches.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Whether the path has no parameter and no wildcard.
    pub fn is_literal(&self) -> bool {
        self.segments.iter().all(|segment| matches!(segment, Segment::Literal(_)))
    }

    /// The pattern for paths that go on behind a script: servers run `/login.php` for `/login.php/x`, too.
    pub(crate) fn behind_script(&self) -> Option<Self> {
        let Some(Segment::Literal(name)) = self.segments.last() else { return None };
        let (_, extension) = name.rsplit_once('.')?;
        SCRIPTS.iter().find(|known| extension.eq_ignore_ascii_case(known))?;
        let mut pattern = self.clone();
        pattern.segments.push(Segment::Rest);
        Some(pattern)
    }

    /// The pattern with folded literals. It matches the folded form of every path that this pattern matches.
    pub(crate) fn folded(&self, case: PathCase) -> Self {
        let fold = |segment: &Segment| {
            let Segment::Literal(text) = segment else { return Some(segment.clone()) };
            let mut folded = String::with_capacity(text.len());
            fold_segment(text, case, &mut folded);
            // A segment of only parameters is removed from a folded path.
            (!matches!(folded.as_str(), "" | "." | "..")).then(|| Segment::Literal(folded.into()))
        };
        Self { method: self.method.clone(), segments: self.segments.iter().filter_map(fold).collect() }
    }

    /// Whether it matches the rest of a path, however long it is.
    pub(crate) fn matches_rest(&self) -> bool {
        matches!(self.segments.last(), Some(Segment::Rest))
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl FromStr for EndpointPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

impl fmt::Display for EndpointPattern {
    /// The pattern as it matches: normalised, without a trailing slash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        if self.segments.is_empty() {
            return f.write_str("/");
        }
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Literal(text) => write!(f, "/{text}"),
            Segment::One(Some(name)) => write!(f, "/{{{name}}}"),
            Segment::One(None) => f.write_str("/*"),
            Segment::Rest => f.write_str("/**"),
        })
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, PatternError> {
        let segment = || text.to_owned();
        match text {
            "*" => return Ok(Self::One(None)),
            "**" => return Ok(Self::Rest),
            // Handled below, so that the error names the query.
            _ if text.contains(['?', '#']) => {}
            _ if text.contains(['{', '}']) => {
                return match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
                    Some(name) if is_name(name) => Ok(Self::One(Some(name.into()))),
                    _ => Err(PatternError::Parameter { segment: segment() }),
                };
            }
            _ if text.contains('*') => return Err(PatternError::PartialWildcard { segment: segment() }),
            _ => {}
        }
        match normalize(&format!("/{text}")) {
            Ok(path) if path == "/" => Err(PatternError::NeverMatches { segment: segment() }),
            Ok(path) => Ok(Self::Literal(path[1..].into())),
            Err(cause) => Err(PatternError::Segment { segment: segment(), cause }),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::One(name) => name.as_deref(),
            Self::Literal(_) | Self::Rest => None,
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn checked_method(text: &str) -> Result<Box<str>, PatternError> {
    let fits = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-' || byte == b'_');
    if fits { Ok(text.into()) } else { Err(PatternError::Method { method: text.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(text: &str) -> String {
        EndpointPattern::parse(text).unwrap().to_string()
    }

    #[test]
    fn pattern_is_normalised_like_a_path() {
        assert_eq!(normalized("/%61pi/a%2fb/café/"), "/api/a%2Fb/caf%C3%A9");
        assert_eq!(normalized("  POST   /x/{id}/*/** "), "POST /x/{id}/*/**");
        assert_eq!(normalized("/"), "/");
        assert_eq!(normalized("M-SEARCH /**/"), "M-SEARCH /**");
    }

    #[test]
    fn patterns_are_equal_if_they_match_the_same_requests() {
        let parse = |text| EndpointPattern::parse(text).unwrap();
        assert_eq!(parse("/a/{x}"), parse("/a/*/"));
        assert_ne!(parse("/a/{x}"), parse("/a/**"));
        assert_ne!(parse("GET /a"), parse("/a"));
    }

    #[test]
    fn folded_pattern_is_lower_case_without_parameters() {
        let folded = |text, case| EndpointPattern::parse(text).unwrap().folded(case).to_string();
        assert_eq!(folded("POST /API/%C3%89;v=1/**", PathCase::Insensitive), "POST /api/%C3%A9/**");
        assert_eq!(folded("/API;v=1/{Id}/;x/*", PathCase::Insensitive), "/api/{Id}/*");
        assert_eq!(folded("/API;v=1/{Id}", PathCase::Sensitive), "/API/{Id}");
    }

    #[test]
    fn invalid_pattern_error_explains_the_fix() {
        let message = |text: &str| {
            let error = EndpointPattern::parse(text).unwrap_err();
            format!("{error}; {}", error.hint())
        };
        for (pattern, expected) in [
            ("", "the pattern is empty"),
            ("api/v1", "write `/api/v1`"),
            ("post /x", "invalid method `post`; write the method in uppercase"),
            ("GET x", "write `/x`"),
            ("/a/**/b", "`**` is only allowed as the last segment"),
            ("/a*", "`a*`: `*` must be a whole segment"),
            ("/a/***", "`*` must be a whole segment"),
            ("/x{id}", "`x{id}`: a parameter must be a whole segment; write for example"),
            ("/{}", "a parameter must be a whole segment"),
            ("/{a-b}", "a parameter must be a whole segment"),
            ("/{a}/{a}", "duplicate parameter name `a`"),
            ("/a//b", "segment `` never matches"),
            ("/a/../b", "segment `..` never matches"),
            ("/a/%2e", "segment `%2e` never matches"),
            ("/a b", "`a b`: ' ' at byte 2 of the path must be percent-encoded"),
            ("/%c0%af", "are not valid UTF-8"),
            ("/a?b=1", "'?' at byte"),
        ] {
            assert!(message(pattern).contains(expected), "{pattern}: {}", message(pattern));
        }
        assert!(message(&"/a".repeat(65)).contains("65 segments"));
    }
}
