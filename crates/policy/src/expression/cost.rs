//! Bounds the work of evaluating an expression, before it is evaluated for the first time.
//!
//! The work is counted in steps. Only macros repeat work: they iterate over a list that is written out in the expression
//! and contain no other macro. So neither the number of steps nor the size of a value depends on the request, apart from the
//! length of its texts.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, operators};

/// The maximum number of steps. If every text has the size of a whole request head, they take about ten milliseconds;
/// `cargo run --release -p bench -- conditions` measures it.
const MOST_STEPS: usize = 10_000;

/// Why an expression is too expensive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    /// A macro is nested in another one, which would multiply their work.
    NestedMacro,
    /// A macro iterates over a list whose length is not known.
    UnknownLength,
    /// The expression has too many steps.
    Steps,
}

impl Excess {
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::NestedMacro => "`all`, `exists`, `exists_one`, `map` and `filter` cannot be nested",
            Self::UnknownLength => {
                "`all`, `exists`, `exists_one`, `map` and `filter` need a list that is written out, such as `['/a', '/b']`"
            }
            Self::Steps => "the expression takes too many steps to evaluate",
        }
    }
}

/// Checks the work of `expr`, which must not be nested deeply. Returns the part that is too expensive, and why.
pub(super) fn check(expr: &IdedExpr) -> Result<(), (&IdedExpr, Excess)> {
    match steps(expr, false)? {
        ..=MOST_STEPS => Ok(()),
        _ => Err((expr, Excess::Steps)),
    }
}

fn steps(expr: &IdedExpr, in_macro: bool) -> Result<usize, (&IdedExpr, Excess)> {
    let steps = |expr| steps(expr, in_macro);
    let parts = match &expr.expr {
        Expr::Literal(_) | Expr::Unspecified | Expr::Ident(_) => 0,
        Expr::Select(select) => steps(&select.operand)?,
        Expr::Call(call) => {
            let own = own_steps(&call.func_name);
            sum(call.target.as_deref().into_iter().chain(&call.args).map(steps))?.saturating_add(own)
        }
        Expr::List(list) => sum(list.elements.iter().map(steps))?,
        Expr::Map(map) => sum(map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).map(steps))?,
        Expr::Struct(fields) => {
            sum(fields.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).map(steps))?
        }
        Expr::Comprehension(_) if in_macro => return Err((expr, Excess::NestedMacro)),
        Expr::Comprehension(comprehension) => {
            let range = &comprehension.iter_range;
            let length = match &range.expr {
                Expr::List(list) => list.elements.len(),
                Expr::Map(map) => map.entries.len(),
                _ => return Err((range, Excess::UnknownLength)),
            };
            let steps = |expr| self::steps(expr, true);
            let each = sum([&comprehension.loop_cond, &comprehension.loop_step].map(steps).into_iter())?;
            let once = [range, &comprehension.accu_init, &comprehension.result];
            sum(once.map(steps).into_iter())?.saturating_add(each.saturating_mul(length))
        }
    };
    Ok(parts.saturating_add(1))
}

fn sum<E>(mut parts: impl Iterator<Item = Result<usize, E>>) -> Result<usize, E> {
    parts.try_fold(0, |sum: usize, part| Ok(sum.saturating_add(part?)))
}

fn entry_parts(entry: &EntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (key, value) = match entry {
        EntryExpr::StructField(field) => (None, &field.value),
        EntryExpr::MapEntry(entry) => (Some(&entry.key), &entry.value),
    };
    key.into_iter().chain([value])
}

/// The steps of a call itself. `matches` reads a text, `+` copies both texts or lists; other functions are faster.
fn own_steps(function: &str) -> usize {
    match function {
        operators::LOGICAL_AND
        | operators::LOGICAL_OR
        | operators::LOGICAL_NOT
        | operators::NOT_STRICTLY_FALSE
        | operators::CONDITIONAL => 0,
        "matches" => 500,
        operators::ADD => 100,
        _ => 10,
    }
}
