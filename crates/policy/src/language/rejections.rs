//! The part of the table for the responses to rejected requests.

use tidegate_headers::BodyStyle;

use super::Shape::{Choice, Either, Object, Status, Text};
use super::names::FILE;
use super::{Mapping, PolicyKey, Shape};

const ERROR_BODY_SHAPES: &[Shape] = &[Choice(&BodyStyle::NAMES), Object(&ERROR_BODY)];
const RULE_ERROR_BODY_SHAPES: &[Shape] = &[Choice(&BodyStyle::NAMES), Object(&RULE_ERROR_BODY)];

/// `error_body` of the policy.
pub(super) const ERROR_BODY_KEY: PolicyKey = PolicyKey::new(
    "error_body",
    Either(ERROR_BODY_SHAPES),
    "The format of error bodies: one of the styles, or a template for requests that limits reject.",
    "nested",
)
.default("flat");

/// `error_body` of a limit.
pub(super) const RULE_ERROR_BODY_KEY: PolicyKey = PolicyKey::new(
    "error_body",
    Either(RULE_ERROR_BODY_SHAPES),
    "The format of the body if this limit rejects a request.",
    "{ template: rejected.json }",
)
.default("that of the policy");

/// `status` of a limit.
pub(super) const STATUS_KEY: PolicyKey = PolicyKey::new(
    "status",
    Status,
    "The status of the response if this limit rejects a request: 429 or 503.",
    "503",
)
.default("429");

const TEMPLATE: PolicyKey = PolicyKey::new(
    "template",
    FILE,
    "The file with the text of the body, at most 64 KiB. Placeholders are `{{code}}`, `{{message}}`, `{{status}}`, `{{retry_after}}`, `{{limit}}`, `{{remaining}}`, `{{reset}}` (Unix seconds), `{{reset_ms}}`, `{{window}}` (such as `1m`), `{{window_seconds}}` and `{{rule}}`.",
    "rejected.json",
)
.required();

const CONTENT_TYPE: PolicyKey = PolicyKey::new(
    "content_type",
    Text("content type"),
    "The type of the body, which decides how values are escaped: JSON, XML, HTML or plain text.",
    "text/plain",
)
.default("by the end of the file name: .json, .html or .txt");

pub(crate) static ERROR_BODY: Mapping = Mapping {
    name: "`error_body`",
    path: "error_body",
    doc: "Bodies of an operator's own form for requests that limits reject. The text of other errors would be wrong, so these have a style.",
    keys: &[
        TEMPLATE,
        CONTENT_TYPE,
        PolicyKey::new(
            "style",
            Choice(&BodyStyle::NAMES),
            "The format of the bodies of other errors.",
            "nested",
        )
        .default("flat"),
    ],
};

pub(crate) static RULE_ERROR_BODY: Mapping = Mapping {
    name: "`error_body` of a limit",
    path: "rate_limits.default.error_body",
    doc: "Bodies of an operator's own form for requests that this limit rejects.",
    keys: &[TEMPLATE, CONTENT_TYPE],
};
