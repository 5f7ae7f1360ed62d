//! Path patterns, as far as a plan needs to know them: their form.
//!
//! How requests are matched is the router's business; this is what it is built from.

use std::fmt;

/// The longest pattern; no server takes longer paths for granted.
const LONGEST: usize = 2_048;

/// A pattern over normalised paths: `/api/{id}/*`, `/static/**`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathPattern(String);

/// One segment of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment<'a> {
    /// Exactly this.
    Literal(&'a str),
    /// Any one segment; named or not.
    One,
    /// Any rest, also none.
    Rest,
}

/// Why a text is no pattern, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatternProblem {
    pub(crate) what: String,
    pub(crate) hint: String,
}

impl PathPattern {
    /// The pattern that takes every path.
    pub(crate) fn everything() -> Self {
        Self("/**".to_owned())
    }

    /// The pattern that `text` is, or why it is none. This is the seam to the router's own parser: whatever that
    /// refuses is to be refused here.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternProblem> {
        let problem =
            |what: &str, hint: &str| Err(PatternProblem { what: what.to_owned(), hint: hint.to_owned() });
        if text.len() > LONGEST {
            return problem("the path is longer than 2048 bytes", "shorten it, or end it with `/**`");
        }
        let Some(rest) = text.strip_prefix('/') else {
            return problem("a path begins with `/`", "write it like `/api/v1/search`");
        };
        if let Some(odd) = text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '\\' | '"'))
        {
            let hint = match odd {
                '?' | '#' => "only the path is matched; leave out the query".to_owned(),
                odd => format!("percent-encode it: `{}`", encoded(odd)),
            };
            return Err(PatternProblem { what: format!("a path cannot hold {odd:?}"), hint });
        }
        let mut names = Vec::new();
        let segments: Vec<_> = rest.split('/').collect();
        for (index, segment) in segments.iter().enumerate() {
            let last = index + 1 == segments.len();
            match *segment {
                "" if !last => {
                    return problem(
                        "a path never holds `//`",
                        "requests are normalised first; write one `/`",
                    );
                }
                "." | ".." => {
                    return problem(
                        "a path never holds `.` or `..`",
                        "requests are normalised first; write the path they lead to",
                    );
                }
                "**" if !last => {
                    return problem(
                        "`**` may stand only at the end",
                        "use `*` for one segment in the middle",
                    );
                }
                "*" | "**" => {}
                segment => {
                    if let Some(name) = parameter(segment)? {
                        if names.contains(&name) {
                            return problem(
                                "a `{name}` stands in the path twice",
                                "give each its own name, or use `*`",
                            );
                        }
                        names.push(name);
                    }
                }
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its segments, the leading `/` left out.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.0.split('/').skip(1).map(|segment| match segment {
            "**" => Segment::Rest,
            "*" => Segment::One,
            segment if segment.starts_with('{') => Segment::One,
            segment => Segment::Literal(segment),
        })
    }

    /// The pattern with its names taken off: patterns of one shape take the same paths.
    pub(crate) fn shape(&self) -> String {
        let segment = |segment| match segment {
            Segment::Literal(text) => text,
            Segment::One => "*",
            Segment::Rest => "**",
        };
        self.segments().map(segment).fold(String::new(), |shape, segment| shape + "/" + segment)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn encoded(c: char) -> String {
    let mut buffer = [0; 4];
    let bytes = c.encode_utf8(&mut buffer).bytes();
    bytes.fold(String::new(), |text, byte| text + &format!("%{byte:02X}"))
}

/// The name of a segment that is a parameter.
fn parameter(segment: &str) -> Result<Option<&str>, PatternProblem> {
    let problem =
        |what: &str, hint: &str| Err(PatternProblem { what: what.to_owned(), hint: hint.to_owned() });
    if segment.contains('*') {
        return problem("`*` stands for a whole segment", "write `/*/`, or `/**` at the end");
    }
    match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(name) if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
            problem("a parameter needs a name of letters, digits and `_`", "write it like `{id}`, or use `*`")
        }
        Some(name) => Ok(Some(name)),
        None if segment.contains(['{', '}']) => {
            problem("a parameter is a whole segment", "write it like `/users/{id}/orders`")
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PathPattern {
        PathPattern::parse(text).unwrap()
    }

    #[test]
    fn patterns_of_one_shape_differ_only_in_names() {
        assert_eq!(pattern("/a/{x}/**").shape(), pattern("/a/*/**").shape());
        assert_ne!(pattern("/a/b").shape(), pattern("/a/*").shape());
    }

    #[test]
    fn what_no_normalised_path_can_be_is_refused() {
        for text in [
            "", "a", "/a//b", "/a/../b", "/./a", "/a?b=1", "/a b", "/**/a", "/a*", "/{}", "/x{id}",
            "/{a}/{a}", "/ü",
        ] {
            assert!(PathPattern::parse(text).is_err(), "{text}");
        }
    }
}
