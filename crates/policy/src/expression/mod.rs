//! Conditions on requests (`when:`) in the Common Expression Language (CEL).
//!
//! | variable | value |
//! |---|---|
//! | `request.method`, `request.host`, `request.path` | strings; the path is normalised |
//! | `request.headers['x-name']` | a string, empty if the header is missing; multiple values are joined by `, ` |
//! | `'x-name' in request.headers` | whether the header is present |
//! | `client.kind` | `api_key`, `user`, `tenant`, `ip`, `cookie`, `fingerprint` or `anonymous` |
//! | `client.ip` | the client's full address |
//! | `client.tier`, `client.tenant`, `client.user` | strings, empty if there is none |
//!
//! Secrets are not available. Only the variables that an expression uses are computed.
//!
//! In addition to the standard functions there is `matches`. Its pattern must be a literal, so that it is compiled once
//! with the expression. A run-time error, such as `int('x')`, is reported as an error; callers then apply the rule.
//!
//! Compilation and evaluation take bounded time and memory for any expression and request: `cost.rs` bounds the steps,
//! `pattern.rs` regular expressions, and an [`ExpressionBudget`] all expressions of a policy.

mod check;
mod cost;
mod facts;
mod pattern;
mod syntax;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::common::types::CelBool;
use cel::common::value::Val;
use cel::extractors::This;
use cel::{Context, Env, ExecutionError, Program, Value};
use http::header::HeaderName;

pub use check::ExpressionPosition;
use facts::{RequestBindings, RequestVariable};
use pattern::{Pattern, UnsupportedText};

use crate::facts::Facts;
use crate::identity::Identity;

/// The maximum length of an expression, which bounds the work of the parser.
const LONGEST: usize = 4096;

/// The maximum length of all expressions of a policy. Parsing takes a few milliseconds for each KiB.
const LONGEST_TOGETHER: usize = 1 << 20;
/// The maximum size of all patterns of a policy, in bytes.
const LARGEST_PATTERNS: usize = 32 << 20;

/// What the further expressions of a policy may take.
#[derive(Debug)]
pub(crate) struct ExpressionBudget {
    /// The length of their sources.
    source: usize,
    /// The size of their patterns.
    patterns: usize,
}

impl Default for ExpressionBudget {
    fn default() -> Self {
        Self { source: LONGEST_TOGETHER, patterns: LARGEST_PATTERNS }
    }
}

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A compiled condition.
///
/// ```
/// use tidegate_policy::Expression;
///
/// assert!(Expression::compile("request.method == 'POST' && client.tier != 'premium'").is_ok());
/// let error = Expression::compile("request.methd == 'POST'").unwrap_err();
/// assert_eq!(error.to_string(), "column 1: unknown variable `request.methd`; did you mean `request.method`?");
/// ```
pub struct Expression {
    program: Program,
    variables: Vec<RequestVariable>,
    headers: Vec<HeaderName>,
    /// The functions. Each evaluation adds its request in an inner scope.
    root: Context<'static, 'static>,
}

/// Why an expression is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It is too long.
    #[error("the expression has {length} bytes; the maximum is {LONGEST}")]
    TooLong {
        /// How long it is.
        length: usize,
    },
    /// It is nested too deeply.
    #[error("{position}: nested too deeply; split the rule into two")]
    TooDeep {
        /// The position.
        position: ExpressionPosition,
    },
    /// A syntax error.
    #[error("{position}: {message}")]
    Syntax {
        /// The position.
        position: ExpressionPosition,
        /// What is wrong.
        message: String,
        /// How to fix it.
        hint: String,
    },
    /// An unknown variable.
    #[error("{position}: unknown variable `{name}`{}", hint(nearest.as_deref()))]
    UnknownVariable {
        /// The position.
        position: ExpressionPosition,
        /// The name as written.
        name: String,
        /// The most similar name.
        nearest: Option<String>,
    },
    /// An unknown function.
    #[error("{position}: unknown function `{name}`")]
    UnknownFunction {
        /// The position.
        position: ExpressionPosition,
        /// The name as written.
        name: String,
    },
    /// A type error.
    #[error("{position}: {message}")]
    Types {
        /// The position.
        position: ExpressionPosition,
        /// The message.
        message: String,
    },
    /// The pattern of `matches` is not a valid regular expression or not a literal.
    #[error("{position}: {message}")]
    Pattern {
        /// The position.
        position: ExpressionPosition,
        /// The message.
        message: String,
    },
    /// The pattern of `matches` has too many states.
    #[error("{position}: {message}")]
    TooComplex {
        /// The position.
        position: ExpressionPosition,
        /// The message.
        message: String,
    },
    /// Its evaluation, or the compilation of all expressions of the policy, would take too long.
    #[error("{position}: {message}")]
    TooExpensive {
        /// The position.
        position: ExpressionPosition,
        /// The message.
        message: String,
    },
    /// The result is not a boolean.
    #[error("the result is {found}, expected a boolean; compare it with a value")]
    NotBoolean {
        /// The type of the result.
        found: String,
    },
}

/// An expression could not be evaluated for a request. The rule then applies, which is the stricter choice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvaluationError {
    /// The message, which may quote the request.
    pub message: String,
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl ExpressionError {
    /// The position of the error, if it is known.
    pub fn position(&self) -> Option<ExpressionPosition> {
        match self {
            Self::TooDeep { position }
            | Self::Syntax { position, .. }
            | Self::UnknownVariable { position, .. }
            | Self::UnknownFunction { position, .. }
            | Self::Types { position, .. }
            | Self::TooComplex { position, .. }
            | Self::TooExpensive { position, .. }
            | Self::Pattern { position, .. } => {
                Some(*position).filter(|position| *position != ExpressionPosition::default())
            }
            Self::TooLong { .. } | Self::NotBoolean { .. } => None,
        }
    }

    /// The message without the position.
    pub fn what(&self) -> String {
        match self {
            Self::TooLong { length } => {
                format!("the expression has {length} bytes; the maximum is {LONGEST}")
            }
            Self::TooDeep { .. } => "the expression is nested too deeply".to_owned(),
            Self::Syntax { message, .. }
            | Self::Types { message, .. }
            | Self::Pattern { message, .. }
            | Self::TooComplex { message, .. }
            | Self::TooExpensive { message, .. } => message.clone(),
            Self::UnknownVariable { name, .. } => format!("unknown variable `{name}`"),
            Self::UnknownFunction { name, .. } => format!("unknown function `{name}`"),
            Self::NotBoolean { found } => format!("the result is {found}, expected a boolean"),
        }
    }

    /// How to fix it.
    pub fn hint(&self) -> String {
        match self {
            Self::TooLong { .. } | Self::TooDeep { .. } => "split the rule into two".to_owned(),
            Self::Syntax { hint, .. } => hint.clone(),
            Self::UnknownVariable { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Self::UnknownVariable { nearest: None, name, .. } if !name.contains('.') => {
                format!("a text to compare with is in quotes: `\"{name}\"`; available variables: {}, {}", RequestVariable::NAMES.join(", "), facts::HEADERS)
            }
            Self::UnknownVariable { nearest: None, .. } => {
                format!("available variables: {}, {}", RequestVariable::NAMES.join(", "), facts::HEADERS)
            }
            Self::UnknownFunction { name, .. } if syntax::operator(name).is_some() => {
                format!("write `{}`", syntax::operator(name).unwrap_or_default())
            }
            Self::UnknownFunction { .. } => {
                "use `matches` or a standard CEL function such as `startsWith`".to_owned()
            }
            Self::Types { .. } => "compare values of the same type".to_owned(),
            Self::Pattern { .. } => {
                "write the regular expression as a literal, for example `'^/v[0-9]+/'`".to_owned()
            }
            Self::TooComplex { .. } => {
                r"use smaller repetitions, ASCII classes such as `[0-9a-z_]` instead of `\d` and `\w`, or `contains` and `startsWith`"
                    .to_owned()
            }
            Self::TooExpensive { .. } => {
                "use fewer or simpler macros and patterns, or `match` instead of `when`".to_owned()
            }
            Self::NotBoolean { .. } => "compare it with a value".to_owned(),
        }
    }
}

impl Expression {
    /// Compiles and checks an expression.
    pub fn compile(source: &str) -> Result<Self, ExpressionError> {
        Self::compile_within(source, &mut ExpressionBudget::default())
    }

    /// Compiles and checks an expression of a policy; takes its cost from the `budget` of the policy.
    pub(crate) fn compile_within(
        source: &str,
        budget: &mut ExpressionBudget,
    ) -> Result<Self, ExpressionError> {
        if source.len() > LONGEST {
            return Err(ExpressionError::TooLong { length: source.len() });
        }
        budget.source = budget.source.checked_sub(source.len()).ok_or_else(|| {
            let message = "the expressions of the policy are longer than 1 MiB together".to_owned();
            ExpressionError::TooExpensive { position: ExpressionPosition::default(), message }
        })?;
        let program = ENVIRONMENT.compile(source).map_err(|errors| check::syntax(source, &errors))?;
        let check::References { variables, headers, patterns } = check::check(&program, budget)?;
        let expression = Self { program, variables, headers, root: context(patterns) };
        expression.test_evaluate()?;
        Ok(expression)
    }

    /// The headers that it looks up by a literal name.
    pub fn headers(&self) -> &[HeaderName] {
        &self.headers
    }

    /// Evaluates the condition for a request whose client has this tier.
    pub fn evaluate(&self, identity: &Identity<'_>, tier: Option<&str>) -> Result<bool, EvaluationError> {
        self.evaluate_at(*identity.facts(), identity, tier)
    }

    /// Whether the condition depends on the path.
    pub(crate) fn reads_path(&self) -> bool {
        self.variables.contains(&RequestVariable::Path)
    }

    /// Whether the condition depends on the method.
    pub(crate) fn reads_method(&self) -> bool {
        self.variables.contains(&RequestVariable::Method)
    }

    /// Whether the condition depends on the host.
    pub(crate) fn reads_host(&self) -> bool {
        self.variables.contains(&RequestVariable::Host)
    }

    /// Evaluates the condition for another reading of the request.
    pub(crate) fn evaluate_at(
        &self,
        reading: Facts<'_>,
        identity: &Identity<'_>,
        tier: Option<&str>,
    ) -> Result<bool, EvaluationError> {
        let bindings = RequestBindings::new(&self.variables, reading, identity, tier);
        let verdict = self.run(&bindings, |result| match result.downcast_ref::<CelBool>() {
            Some(verdict) => Ok(*verdict.inner()),
            None => Err(format!("the result is {}, expected a boolean", result.get_type().name())),
        });
        verdict.map_err(|error| error.to_string()).flatten().map_err(|message| EvaluationError { message })
    }

    /// Evaluates once with an empty request, to find type errors that the static check cannot find.
    fn test_evaluate(&self) -> Result<(), ExpressionError> {
        let result = self.run(&RequestBindings::empty(), |result| result.get_type().name().to_owned());
        match result {
            Ok(found) if found == "bool" => Ok(()),
            Ok(found) => Err(ExpressionError::NotBoolean { found }),
            Err(error) if check::is_mistake(&error) => Err(ExpressionError::Types {
                position: ExpressionPosition::default(),
                message: error.to_string(),
            }),
            Err(_) => Ok(()),
        }
    }

    fn run<R>(
        &self,
        bindings: &RequestBindings<'_>,
        read: impl FnOnce(&dyn Val) -> R,
    ) -> Result<R, ExecutionError> {
        let root: &Context<'_, '_> = &self.root;
        let mut scope = root.new_inner_scope();
        scope.set_variable_resolver(bindings);
        let result = Value::resolve_val(self.program.expression(), &scope)?;
        Ok(read(result.as_ref()))
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.program.source_info().source).finish()
    }
}

/// The standard functions, and `matches` over patterns that were compiled ahead.
fn context(patterns: HashMap<String, Pattern>) -> Context<'static, 'static> {
    let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
    let matches = move |This(text): This<Arc<String>>, pattern: Arc<String>| match patterns.get(&*pattern) {
        Some(pattern) => pattern.is_match(&text).map_err(|UnsupportedText| {
            ExecutionError::function_error("matches", "`\\b` is not supported for text outside ASCII")
        }),
        None => Err(ExecutionError::function_error("matches", "the pattern is not a literal")),
    };
    // This fails only if the standard functions already include `matches`; tests would detect it.
    let _ = context.add_function("matches", matches);
    context
}

#[cfg(test)]
mod tests;
