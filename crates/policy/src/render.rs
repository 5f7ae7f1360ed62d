//! Renders a problem for people: the source line, a caret under the position, a hint.

use std::fmt;

use crate::problem::{Excerpt, Problem};

/// The number of characters of a line that an excerpt shows.
const MAX_WIDTH: usize = 100;
/// The number of characters shown before the position in a shortened line.
const CONTEXT_BEFORE: usize = 40;
/// The number of characters of a policy's text that a message quotes.
const MAX_QUOTE: usize = 60;

pub(crate) fn problem(problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Problem { severity, file, line, column, path, what, expected, hint, excerpt } = problem;
    writeln!(f, "{severity}: {what}")?;
    let number = if *line == 0 { String::new() } else { line.to_string() };
    let margin = " ".repeat(number.len());
    if *line == 0 {
        write!(f, "{margin} --> {file}")?;
    } else {
        write!(f, "{margin} --> {file}:{line}:{column}")?;
    }
    if let Some(Excerpt { text, before, length }) = excerpt {
        writeln!(f, "\n{margin} |\n{number} | {text}")?;
        write!(f, "{margin} | {}{}", " ".repeat(*before), "^".repeat(*length))?;
    }
    let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let path = Some(path.clone()).filter(|path| !path.is_empty());
    for (label, text) in [("at", path), ("expected", non_empty(expected)), ("hint", non_empty(hint))] {
        if let Some(text) = text {
            write!(f, "\n{margin} = {label}: {text}")?;
        }
    }
    Ok(())
}

/// Returns the line of `text` at the byte `offset`, with `length` characters marked.
pub(crate) fn excerpt(text: &str, offset: usize, length: usize) -> Excerpt {
    let offset = (0..=offset.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let (before, after) = text.split_at(offset);
    let is_break = |c: char| c == '\n' || c == '\r';
    let mut before: Vec<char> = before.chars().rev().take_while(|c| !is_break(*c)).take(MAX_WIDTH).collect();
    before.reverse();
    let mut cut = "";
    if before.len() > CONTEXT_BEFORE * 2 {
        before.drain(..before.len() - CONTEXT_BEFORE);
        cut = "…";
    }
    let room = MAX_WIDTH.saturating_sub(before.len());
    let after: Vec<char> = after.chars().take_while(|c| !is_break(*c)).take(room + 1).collect();
    let more = if after.len() > room { "…" } else { "" };
    let shown: String = before.iter().chain(after.iter().take(room)).map(|&c| visible(c)).collect();
    let marked = length.min(after.len().min(room)).max(1);
    Excerpt {
        text: format!("{cut}{shown}{more}").trim_end().to_owned(),
        before: before.len() + cut.chars().count(),
        length: marked,
    }
}

/// Quotes text of the policy in backquotes, shortened and without control characters.
pub(crate) fn quote(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_QUOTE).map(visible).collect();
    if text.chars().nth(MAX_QUOTE).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// Replaces characters that would misalign the caret line or change the terminal's state.
pub(crate) fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        // Bidirectional control characters could make a line look different from what it is.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{feff}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_of_long_line_is_centered_on_the_position() {
        let line = format!("{}here{}", "x".repeat(5_000), "y".repeat(5_000));
        let Excerpt { text, before, length } = excerpt(&line, 5_000, 4);
        assert!(text.chars().count() <= MAX_WIDTH + 2, "{text}");
        assert_eq!(text.chars().skip(before).take(length).collect::<String>(), "here");
    }

    #[test]
    fn excerpt_and_quote_replace_escape_sequences() {
        assert!(!quote("\u{1b}[2J").contains('\u{1b}'));
        assert!(!excerpt("a: \u{1b}[2J", 0, 1).text.contains('\u{1b}'));
    }
}
