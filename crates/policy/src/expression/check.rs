//! Static checks of expressions: names and, as far as possible, types.

use std::collections::{HashMap, HashSet};
use std::fmt;

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{ExecutionError, ParseErrors, Program};
use http::header::HeaderName;
use strsim::levenshtein;

use super::facts::{HEADERS, RequestVariable};
use super::pattern::{LARGEST_PATTERN, Pattern, RegexError};
use super::syntax::{self, SyntaxProblem};
use super::{ExpressionBudget, ExpressionError, cost};

/// The maximum depth, as evaluation is recursive. Chains of `&&` and `||` add little depth, as the parser balances them.
const DEEPEST: usize = 48;
/// The names of types, as in `type(x) == string`.
const TYPE_NAMES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// A position in an expression, from 1. The default means unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpressionPosition {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

impl fmt::Display for ExpressionPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { line: 0, .. } => f.write_str("the expression"),
            Self { line: 1, column } => write!(f, "column {column}"),
            Self { line, column } => write!(f, "line {line}, column {column}"),
        }
    }
}

/// The variables, patterns and headers that an expression uses.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) variables: Vec<RequestVariable>,
    pub(super) patterns: HashMap<String, Pattern>,
    /// Headers that are looked up by a literal name.
    pub(super) headers: Vec<HeaderName>,
}

/// Converts the first syntax error of `source`.
pub(super) fn syntax(source: &str, errors: &ParseErrors) -> ExpressionError {
    let first = errors.errors.first();
    let number = |number: isize| usize::try_from(number).unwrap_or_default();
    let position =
        first.map(|error| ExpressionPosition { line: number(error.pos.0), column: number(error.pos.1) });
    let position = position.unwrap_or_default();
    // The parser reports its own recursion limit only in the text of the error.
    if first.is_some_and(|error| error.msg.contains("Recursion limit")) {
        return ExpressionError::TooDeep { position };
    }
    let SyntaxProblem { message, hint } = syntax::describe(source, position);
    ExpressionError::Syntax { position, message, hint }
}

/// Whether an error of the test evaluation is caused by the expression and not by the request.
pub(super) fn is_mistake(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::NoSuchOverload(_)
            | ExecutionError::UnsupportedBinaryOperator(..)
            | ExecutionError::UndeclaredReference(_)
            | ExecutionError::UnexpectedType { .. }
            | ExecutionError::UnsupportedTargetType { .. }
            | ExecutionError::NotSupportedAsMethod { .. }
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::InvalidArgumentCount { .. }
            | ExecutionError::UnsupportedKeyType(_)
            | ExecutionError::MissingArgumentOrTarget
    )
}

/// Finds unknown names, type errors, a result that is not a boolean, and expressions that are too expensive.
pub(super) fn check(program: &Program, budget: &mut ExpressionBudget) -> Result<References, ExpressionError> {
    let mut checker = Checker {
        program,
        budget,
        depth: 0,
        scope: Vec::new(),
        functions: HashSet::new(),
        references: References::default(),
    };
    match checker.type_of(program.expression())? {
        ExprType::Bool | ExprType::Unknown => {}
        found => return Err(ExpressionError::NotBoolean { found: found.name().to_owned() }),
    }
    match cost::check(program.expression()) {
        Ok(()) => Ok(checker.references),
        Err((part, excess)) => Err(ExpressionError::TooExpensive {
            position: checker.position(part),
            message: excess.message().to_owned(),
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExprType {
    Bool,
    Number,
    String,
    Headers,
    List,
    Unknown,
}

impl ExprType {
    const fn name(self) -> &'static str {
        match self {
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Headers => "the headers",
            Self::List => "a list",
            Self::Unknown => "unknown",
        }
    }

    fn can_be(self, other: Self) -> bool {
        self == other || self == Self::Unknown || other == Self::Unknown
    }
}

struct Checker<'e> {
    program: &'e Program,
    budget: &'e mut ExpressionBudget,
    depth: usize,
    /// The variables of the enclosing macros (`all`, `exists`, …).
    scope: Vec<&'e str>,
    /// The functions that are known to exist.
    functions: HashSet<String>,
    references: References,
}

impl<'e> Checker<'e> {
    fn type_of(&mut self, expr: &'e IdedExpr) -> Result<ExprType, ExpressionError> {
        if self.depth == DEEPEST {
            return Err(ExpressionError::TooDeep { position: self.position(expr) });
        }
        self.depth += 1;
        let found = self.type_within(expr);
        self.depth -= 1;
        found
    }

    fn type_within(&mut self, expr: &'e IdedExpr) -> Result<ExprType, ExpressionError> {
        Ok(match &expr.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => ExprType::Bool,
            Expr::Literal(LiteralValue::String(_)) => ExprType::String,
            Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)) => {
                ExprType::Number
            }
            Expr::Literal(_) | Expr::Unspecified => ExprType::Unknown,
            Expr::Ident(name) => self.variable(expr, name.clone())?,
            Expr::Select(select) if select.test => {
                let message = "`has` does not work on headers; write `'name' in request.headers`".to_owned();
                return Err(ExpressionError::Types { position: self.position(expr), message });
            }
            Expr::Select(select) => {
                if let Some(name) = qualified(expr) {
                    return self.variable(expr, name);
                }
                self.type_of(&select.operand)?;
                ExprType::Unknown
            }
            Expr::Call(call) => match &call.target {
                None => self.call(expr, &call.func_name, &call.args.iter().collect::<Vec<_>>())?,
                Some(target) => {
                    let args: Vec<_> = std::iter::once(&**target).chain(&call.args).collect();
                    self.call(expr, &call.func_name, &args)?
                }
            },
            Expr::List(list) => {
                list.elements.iter().try_for_each(|element| self.type_of(element).map(drop))?;
                ExprType::List
            }
            Expr::Map(map) => self.entries(map.entries.iter().map(|entry| &entry.expr))?,
            Expr::Struct(fields) => self.entries(fields.entries.iter().map(|entry| &entry.expr))?,
            Expr::Comprehension(macro_) => {
                if self.type_of(&macro_.iter_range)? == ExprType::Headers {
                    let message = "headers cannot be iterated over; look them up by name".to_owned();
                    return Err(ExpressionError::Types {
                        position: self.position(&macro_.iter_range),
                        message,
                    });
                }
                self.type_of(&macro_.accu_init)?;
                let outside = self.scope.len();
                self.scope.extend([macro_.iter_var.as_str(), &macro_.accu_var]);
                self.scope.extend(macro_.iter_var2.as_deref());
                for part in [&macro_.loop_cond, &macro_.loop_step, &macro_.result] {
                    self.type_of(part)?;
                }
                self.scope.truncate(outside);
                ExprType::Unknown
            }
        })
    }

    fn entries(&mut self, entries: impl Iterator<Item = &'e EntryExpr>) -> Result<ExprType, ExpressionError> {
        for entry in entries {
            match entry {
                EntryExpr::StructField(field) => self.type_of(&field.value)?,
                EntryExpr::MapEntry(entry) => {
                    self.type_of(&entry.key)?;
                    self.type_of(&entry.value)?
                }
            };
        }
        Ok(ExprType::Unknown)
    }

    fn variable(&mut self, expr: &IdedExpr, name: String) -> Result<ExprType, ExpressionError> {
        let root = name.split('.').next().unwrap_or_default();
        if self.scope.contains(&root) || TYPE_NAMES.contains(&name.as_str()) {
            return Ok(ExprType::Unknown);
        }
        if name == HEADERS {
            return Ok(ExprType::Headers);
        }
        let field = name.strip_prefix(HEADERS).and_then(|rest| rest.strip_prefix('.'));
        if let Some(field) = field.filter(|field| !field.contains('.')) {
            self.header(field);
            return Ok(ExprType::String);
        }
        if let Some(variable) = RequestVariable::from_name(&name) {
            if !self.references.variables.contains(&variable) {
                self.references.variables.push(variable);
            }
            return Ok(ExprType::String);
        }
        let known = RequestVariable::NAMES.into_iter().chain([HEADERS]);
        let nearest = known.map(|known| (levenshtein(known, &name), known)).min();
        let nearest = nearest.filter(|(distance, _)| *distance <= 3).map(|(_, known)| known.to_owned());
        Err(ExpressionError::UnknownVariable { position: self.position(expr), name, nearest })
    }

    fn call(
        &mut self,
        expr: &IdedExpr,
        name: &str,
        args: &[&'e IdedExpr],
    ) -> Result<ExprType, ExpressionError> {
        let types = args.iter().map(|arg| self.type_of(arg)).collect::<Result<Vec<_>, _>>()?;
        // `request.headers['name']`, `'name' in request.headers`.
        if types.contains(&ExprType::Headers) {
            for arg in args {
                if let Expr::Literal(LiteralValue::String(name)) = &arg.expr {
                    self.header(name.inner());
                }
            }
        }
        let at = |index: usize| types.get(index).copied().unwrap_or(ExprType::Unknown);
        let require = |is_met: bool, message: &str| {
            let error =
                || ExpressionError::Types { position: self.position(expr), message: message.to_owned() };
            is_met.then_some(()).ok_or_else(error)
        };
        match name {
            operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => {
                let is_met = types.iter().all(|operand| operand.can_be(ExprType::Bool));
                require(is_met, "`&&`, `||` and `!` need boolean operands")?;
                Ok(ExprType::Bool)
            }
            operators::EQUALS | operators::NOT_EQUALS => {
                let (one, other) = (at(0), at(1));
                let message = format!("{} never equals {}", one.name(), other.name());
                require(one.can_be(other), &message)?;
                Ok(ExprType::Bool)
            }
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
                let (one, other) = (at(0), at(1));
                let message = format!("{} and {} cannot be ordered", one.name(), other.name());
                require(one.can_be(other), &message)?;
                Ok(ExprType::Bool)
            }
            operators::CONDITIONAL => {
                require(at(0).can_be(ExprType::Bool), "the condition before `?` must be a boolean")?;
                Ok(if at(1) == at(2) { at(1) } else { ExprType::Unknown })
            }
            operators::INDEX if at(0) == ExprType::Headers => {
                require(
                    at(1).can_be(ExprType::String),
                    "headers are indexed by name, as in `request.headers['x']`",
                )?;
                Ok(ExprType::String)
            }
            operators::IN | operators::NOT_STRICTLY_FALSE => Ok(ExprType::Bool),
            operators::ADD if at(0) == at(1) => Ok(at(0)),
            _ if is_operator(name) => Ok(ExprType::Unknown),
            "matches" => {
                self.pattern(expr, args.get(1).copied())?;
                Ok(ExprType::Bool)
            }
            _ => {
                self.function(expr, name)?;
                Ok(result_of(name))
            }
        }
    }

    fn function(&mut self, call: &IdedExpr, name: &str) -> Result<(), ExpressionError> {
        if self.functions.contains(name) {
            return Ok(());
        }
        let name = name.to_owned();
        if !is_function(&name) {
            return Err(ExpressionError::UnknownFunction { position: self.position(call), name });
        }
        self.functions.insert(name);
        Ok(())
    }

    fn header(&mut self, name: &str) {
        self.references.headers.extend(HeaderName::from_bytes(name.as_bytes()));
    }

    fn pattern(&mut self, call: &IdedExpr, pattern: Option<&IdedExpr>) -> Result<(), ExpressionError> {
        let position = self.position(pattern.unwrap_or(call));
        let Some(Expr::Literal(LiteralValue::String(text))) = pattern.map(|pattern| &pattern.expr) else {
            let message = "the pattern of `matches` must be a literal".to_owned();
            return Err(ExpressionError::Pattern { position, message });
        };
        if self.references.patterns.contains_key(text.inner()) {
            return Ok(());
        }
        if self.budget.patterns < LARGEST_PATTERN {
            let message = "the regular expressions of the policy are too large together".to_owned();
            return Err(ExpressionError::TooExpensive { position, message });
        }
        let pattern = Pattern::compile(text.inner());
        // A pattern that is too complex has cost as much as the largest one.
        self.budget.patterns -=
            pattern.as_ref().map_or(LARGEST_PATTERN, Pattern::size).min(self.budget.patterns);
        let pattern = pattern.map_err(|error| match error {
            RegexError::Syntax(message) => ExpressionError::Pattern { position, message },
            RegexError::TooComplex => {
                ExpressionError::TooComplex { position, message: RegexError::TooComplex.to_string() }
            }
        })?;
        self.references.patterns.insert(text.inner().to_owned(), pattern);
        Ok(())
    }

    fn position(&self, expr: &IdedExpr) -> ExpressionPosition {
        let info = self.program.source_info();
        let Some((start, _)) = info.offset_for(leftmost(expr).id) else {
            return ExpressionPosition::default();
        };
        let before: String = info.source.chars().take(start as usize).collect();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ExpressionPosition { line: before.matches('\n').count() + 1, column }
    }
}

/// The first identifier of a selection. The parser reports the position of its dot.
fn leftmost(expr: &IdedExpr) -> &IdedExpr {
    match &expr.expr {
        Expr::Select(select) => leftmost(&select.operand),
        _ => expr,
    }
}

/// The dotted name `a.b.c`, if the expression is one.
fn qualified(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", qualified(&select.operand)?, select.field))
        }
        _ => None,
    }
}

fn is_operator(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Tries the call in the interpreter: an unknown function is an undeclared reference, a known one lacks arguments.
fn is_function(name: &str) -> bool {
    let is_known = |source: String| {
        let context = cel::Context::with_env(std::sync::Arc::clone(&super::ENVIRONMENT));
        let program = super::ENVIRONMENT.compile(&source);
        program.is_ok_and(|program| {
            !matches!(program.execute(&context), Err(ExecutionError::UndeclaredReference(_)))
        })
    };
    is_known(format!("{name}()")) || is_known(format!("''.{name}()"))
}

fn result_of(function: &str) -> ExprType {
    match function {
        "contains" | "startsWith" | "endsWith" | "bool" => ExprType::Bool,
        "size" | "int" | "uint" | "double" => ExprType::Number,
        "string" => ExprType::String,
        _ => ExprType::Unknown,
    }
}
