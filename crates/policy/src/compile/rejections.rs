//! Decodes `error_body` and `status`: the responses to rejected requests.

use std::sync::Arc;

use http::StatusCode;
use tidegate_headers::{BodyFormat, BodyStyle, BodyTemplate, TemplateError, TemplateField};

use crate::compile::files::{ReferencedFile, content_type, read_file};
use crate::compile::{CompileContext, scalar};
use crate::language::{ERROR_BODY, RULE_ERROR_BODY};
use crate::plan::RejectionPlan;
use crate::raw::{Fields, Finding, YamlNode, YamlValue, nearest};
use crate::render::quote;

const MAX_TEMPLATE: usize = 64 << 10;
const CONTENT_TYPES: &str = "application/json, text/html, text/plain, application/xml, or a type that ends with +json or +xml, in UTF-8";

/// The formats of error bodies.
#[derive(Default)]
pub(super) struct ErrorBodies {
    /// Of requests that limits reject.
    pub(super) rejections: BodyFormat,
    /// Of all other errors.
    pub(super) others: BodyStyle,
}

/// Decodes `error_body` of the policy.
pub(super) fn error_bodies<'s>(
    fields: &Fields<'_, 's>,
    context: &mut CompileContext<'s, '_>,
) -> Option<ErrorBodies> {
    let Some(node) = fields.get("error_body") else { return Some(ErrorBodies::default()) };
    if !matches!(&node.value, YamlValue::Mapping(_)) {
        let others = style(node, context)?;
        return Some(ErrorBodies { rejections: others.into(), others });
    }
    let fields = Fields::open(node, &ERROR_BODY, &mut context.report)?;
    let others = match fields.get("style") {
        Some(node) => style(node, context),
        None => Some(BodyStyle::default()),
    };
    let rejections = template(&fields, context);
    Some(ErrorBodies { rejections: rejections?, others: others? })
}

/// Decodes `error_body` and `status` of a limit. Returns `None` if they are invalid, and an empty value without them.
#[expect(clippy::option_option, reason = "an invalid response is not the usual one")]
pub(super) fn rejection<'s>(
    fields: &Fields<'_, 's>,
    context: &mut CompileContext<'s, '_>,
) -> Option<Option<Box<RejectionPlan>>> {
    let status = match fields.get("status") {
        Some(node) => status(node, context),
        None => Some(StatusCode::TOO_MANY_REQUESTS),
    };
    let body = match fields.get("error_body") {
        Some(node) => rule_body(node, context).map(Some),
        None => Some(None),
    };
    let plan = RejectionPlan { status: status?, body: body? };
    let is_usual = plan.body.is_none() && plan.status == StatusCode::TOO_MANY_REQUESTS;
    Some((!is_usual).then(|| Box::new(plan)))
}

fn rule_body<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<BodyFormat> {
    if !matches!(&node.value, YamlValue::Mapping(_)) {
        return style(node, context).map(BodyFormat::Style);
    }
    let fields = Fields::open(node, &RULE_ERROR_BODY, &mut context.report)?;
    template(&fields, context)
}

fn style(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<BodyStyle> {
    scalar::choice(node, "error body", &BodyStyle::NAMES, &BodyStyle::ALL, &mut context.report)
}

fn status(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<StatusCode> {
    match scalar::count(node, &mut context.report)? {
        429 => Some(StatusCode::TOO_MANY_REQUESTS),
        503 => Some(StatusCode::SERVICE_UNAVAILABLE),
        other => {
            let finding = Finding::error(node, format!("a rejection cannot have the status {other}"));
            let hint = "with another status, clients would not know that they may retry";
            context.report.push(finding.expected("429 or 503").hint(hint));
            None
        }
    }
}

/// Reads and checks a template.
fn template<'s>(fields: &Fields<'_, 's>, context: &mut CompileContext<'s, '_>) -> Option<BodyFormat> {
    let type_node = fields.get("content_type");
    let given = type_node
        .map(|node| scalar::text(node, "a content type, for example `text/plain`", &mut context.report));
    let node = fields.require("template", &mut context.report)?;
    let ReferencedFile { shown: name, bytes, .. } = read_file(node, context)?;
    let given = match given {
        Some(given) => Some(given?),
        None => content_type(&name),
    };
    let type_node = type_node.unwrap_or(node);
    let invalid = |what: String| Finding::error(node, format!("{} {what}", quote(&name)));
    let Some(given) = given else {
        let finding = invalid("does not say its content type by the end of its name".to_owned());
        context.report.push(finding.hint("add `content_type`, for example `content_type: text/plain`"));
        return None;
    };
    let finding = if bytes.len() > MAX_TEMPLATE {
        invalid("is larger than 64 KiB".to_owned())
            .hint("use a shorter text; it is sent with every rejection")
    } else {
        match std::str::from_utf8(&bytes) {
            Err(_) => invalid("is not valid UTF-8".to_owned()).hint("save the file as UTF-8"),
            Ok(text) => match BodyTemplate::parse(text, given) {
                Ok(template) => return Some(BodyFormat::Template(Arc::new(template))),
                Err(error) => describe(&error, (node, &name), (type_node, given)),
            },
        }
    };
    context.report.push(finding);
    None
}

/// What is wrong with a template, and how to fix it.
fn describe(
    error: &TemplateError,
    (node, file): (&YamlNode<'_>, &str),
    (type_node, content_type): (&YamlNode<'_>, &str),
) -> Finding {
    match error {
        TemplateError::UnknownContentType => {
            let what = format!("{error}: {}", quote(content_type));
            Finding::error(type_node, what).expected(CONTENT_TYPES)
        }
        TemplateError::Unclosed { .. } => Finding::error(node, format!("{}, {error}", quote(file)))
            .hint("a placeholder is a name in double braces, for example `{{retry_after}}`"),
        TemplateError::UnknownField { name, .. } => {
            let finding = Finding::error(node, format!("{}, {error}", quote(file)));
            let finding = finding.expected(format!("one of {}", TemplateField::NAMES.join(", ")));
            match nearest(name, TemplateField::NAMES) {
                Some(near) => finding.hint(format!("did you mean `{{{{{near}}}}}`?")),
                None => finding,
            }
        }
        TemplateError::NotJson { .. } => Finding::error(node, format!("{}: {error}", quote(file)))
            .hint("put placeholders between quotes, or where JSON expects a value"),
    }
}
