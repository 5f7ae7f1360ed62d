//! The seam to the expression language: what is wrong with an expression before any request is there.

/// Why an expression cannot be used.
pub(super) struct ExpressionProblem {
    pub(super) what: String,
    pub(super) hint: String,
}

/// What is wrong with `source`; `None` if nothing is. So far this sees only what no expression can be; whatever
/// the compiler of expressions refuses belongs here.
pub(super) fn expression_problem(source: &str) -> Option<ExpressionProblem> {
    let problem = |what: String, hint: &str| Some(ExpressionProblem { what, hint: hint.to_owned() });
    let mut open = Vec::new();
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' | '\'' => {
                let mut escaped = false;
                let closed = chars.by_ref().any(|inner| {
                    let ends = inner == c && !escaped;
                    escaped = inner == '\\' && !escaped;
                    ends
                });
                if !closed {
                    return problem(
                        format!("a text in the expression begins with {c} and never ends"),
                        "close it",
                    );
                }
            }
            '(' | '[' | '{' => open.push(c),
            ')' | ']' | '}' => {
                let matching = match c {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop() != Some(matching) {
                    return problem(
                        format!("`{c}` closes nothing in the expression"),
                        "balance the brackets",
                    );
                }
            }
            _ => {}
        }
    }
    let left = open.pop()?;
    problem(format!("`{left}` is never closed in the expression"), "balance the brackets")
}
