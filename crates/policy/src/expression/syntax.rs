//! Syntax errors in the words of this project. The parser's own text lists its tokens, which helps nobody who writes a condition.

use super::ExpressionPosition;

/// What is wrong at a position of an expression, and how to fix it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxProblem {
    pub(super) message: String,
    pub(super) hint: String,
}

/// What people write for the operators of CEL.
const OPERATORS: [(&str, &str); 15] = [
    ("===", "=="),
    ("=", "=="),
    ("is", "=="),
    ("eq", "=="),
    ("equals", "=="),
    ("<>", "!="),
    ("ne", "!="),
    ("=~", "matches"),
    ("~", "matches"),
    ("matches", "matches"),
    ("&", "&&"),
    ("and", "&&"),
    ("|", "||"),
    ("or", "||"),
    ("not", "!"),
];

const EXAMPLE: &str = "write for example `request.method == \"GET\"`";

/// Describes the syntax error that the parser found at `position`.
pub(super) fn describe(source: &str, position: ExpressionPosition) -> SyntaxProblem {
    let problem = |message: String, hint: &str| SyntaxProblem { message, hint: hint.to_owned() };
    match unclosed(source) {
        Some(quote @ ('"' | '\'')) => {
            let hint = format!("add {quote} where the text ends");
            return problem("a quoted text has no end".to_owned(), &hint);
        }
        Some(bracket) => {
            let closing = closing(bracket);
            let hint = format!("add `{closing}` where it ends");
            return problem(format!("`{bracket}` has no `{closing}`"), &hint);
        }
        None => {}
    }
    let token = token_at(source, position);
    if let Some(operator) = operator(token) {
        let hint = match operator {
            "matches" => "write `request.path.matches(\"^/v[0-9]+/\")`".to_owned(),
            operator => format!("write `{operator}`"),
        };
        return problem(format!("`{token}` is not an operator"), &hint);
    }
    match token {
        "" => problem("the expression is not complete".to_owned(), EXAMPLE),
        ")" | "]" | "}" => problem(format!("`{token}` closes nothing"), "remove it"),
        "$" => problem(
            "`$` is not part of CEL, and variables of the environment are not expanded".to_owned(),
            EXAMPLE,
        ),
        token => problem(format!("`{token}` is not expected here"), EXAMPLE),
    }
}

/// The operator that somebody meant who wrote this word.
pub(super) fn operator(word: &str) -> Option<&'static str> {
    OPERATORS.iter().find(|(written, _)| *written == word).map(|(_, operator)| *operator)
}

/// The first quote or bracket that is not closed.
fn unclosed(source: &str) -> Option<char> {
    let mut open = Vec::new();
    let mut characters = source.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' | '\'' => loop {
                match characters.next() {
                    None => return Some(c),
                    Some('\\') => drop(characters.next()),
                    Some(end) if end == c => break,
                    Some(_) => {}
                }
            },
            '(' | '[' | '{' => open.push(c),
            ')' | ']' | '}' => {
                open.pop_if(|bracket| closing(*bracket) == c);
            }
            _ => {}
        }
    }
    open.first().copied()
}

const fn closing(bracket: char) -> char {
    match bracket {
        '(' => ')',
        '[' => ']',
        _ => '}',
    }
}

/// The word, the operator or the character at a position; empty at the end.
fn token_at(source: &str, ExpressionPosition { line, column }: ExpressionPosition) -> &str {
    let text = source.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let at = text.char_indices().nth(column.saturating_sub(1)).map_or(text.len(), |(at, _)| at);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_operator = |c: char| "=<>!~&|".contains(c);
    let whole = |belongs: &dyn Fn(char) -> bool| {
        let start = text[..at]
            .rfind(|c| !belongs(c))
            .map_or(0, |before| before + text[before..].chars().next().map_or(1, char::len_utf8));
        let end = text[at..].find(|c| !belongs(c)).map_or(text.len(), |length| at + length);
        text.get(start..end).unwrap_or_default()
    };
    match text[at..].chars().next() {
        Some(c) if is_word(c) => whole(&is_word),
        Some(c) if is_operator(c) => whole(&is_operator),
        Some(c) => text.get(at..at + c.len_utf8()).unwrap_or_default(),
        None => "",
    }
}
