//! The part of the table for the responses to rejected requests.

use tidegate_headers::BodyStyle;

use super::Shape::{self, Choice, Either, Object, Status, Text};
use super::names::FILE;

const ERROR_BODY_SHAPES: &[Shape] = &[Choice(&BodyStyle::NAMES), Object(&ERROR_BODY)];
const RULE_ERROR_BODY_SHAPES: &[Shape] = &[Choice(&BodyStyle::NAMES), Object(&RULE_ERROR_BODY)];

shared_keys! {
    /// The format of error bodies: one of the styles, or a template for requests that limits reject.
    ERROR_BODY_KEY = error_body: Either(ERROR_BODY_SHAPES), example "nested", default "flat";

    /// The format of the body if this limit rejects a request.
    RULE_ERROR_BODY_KEY = error_body: Either(RULE_ERROR_BODY_SHAPES),
        example "{ template: rejected.json }", default "that of the policy";

    /// The status of the response if this limit rejects a request: 429 or 503.
    STATUS_KEY = status: Status, example "503", default "429";

    /// The file with the text of the body, at most 64 KiB. Placeholders are `{{code}}`, `{{message}}`, `{{status}}`,
    /// `{{retry_after}}`, `{{limit}}`, `{{remaining}}`, `{{reset}}` (Unix seconds), `{{reset_ms}}`, `{{window}}` (such as `1m`),
    /// `{{window_seconds}}` and `{{rule}}`.
    TEMPLATE = template: FILE, example "rejected.json", required;

    /// The type of the body, which decides how values are escaped: JSON, XML, HTML or plain text.
    CONTENT_TYPE = content_type: Text("content type"),
        example "text/plain", default "by the end of the file name: .json, .html or .txt";
}

mappings! {
    /// Bodies of an operator's own form for requests that limits reject. The text of other errors would be wrong, so these have a
    /// style.
    ERROR_BODY: "`error_body`" at "error_body" {
        TEMPLATE;
        CONTENT_TYPE;
        /// The format of the bodies of other errors.
        style: Choice(&BodyStyle::NAMES), example "nested", default "flat";
    }

    /// Bodies of an operator's own form for requests that this limit rejects.
    RULE_ERROR_BODY: "`error_body` of a limit" at "rate_limits.default.error_body" {
        TEMPLATE;
        CONTENT_TYPE;
    }
}
