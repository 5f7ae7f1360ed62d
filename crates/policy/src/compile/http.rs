//! Decodes `http`: how to read requests that upstream servers interpret differently.

use crate::compile::scalar;
use crate::language::HTTP;
use crate::plan::{EncodedSlash, HttpOptions, PathCase, UnderscoreHeaders};
use crate::raw::{Fields, ProblemReport, YamlNode};

/// Decodes the settings of `node`; absent keys take their value from `inherited`. An invalid value is reported and
/// replaced by the inherited one, which has no effect because there is no plan then.
pub(super) fn options<'s>(
    node: Option<&YamlNode<'s>>,
    inherited: HttpOptions,
    report: &mut ProblemReport<'s>,
) -> HttpOptions {
    let Some(fields) = node.and_then(|node| Fields::open(node, &HTTP, report)) else { return inherited };
    let encoded_slash = fields.get("encoded_slash").and_then(|node| {
        scalar::choice(node, "`encoded_slash` value", &EncodedSlash::NAMES, &EncodedSlash::ALL, report)
    });
    let path_case = fields
        .get("path_case")
        .and_then(|node| scalar::choice(node, "`path_case` value", &PathCase::NAMES, &PathCase::ALL, report));
    let underscore_headers = fields.get("underscore_headers").and_then(|node| {
        let what = "`underscore_headers` value";
        scalar::choice(node, what, &UnderscoreHeaders::NAMES, &UnderscoreHeaders::ALL, report)
    });
    HttpOptions {
        encoded_slash: encoded_slash.unwrap_or(inherited.encoded_slash),
        path_case: path_case.unwrap_or(inherited.path_case),
        underscore_headers: underscore_headers.unwrap_or(inherited.underscore_headers),
    }
}
