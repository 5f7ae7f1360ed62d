//! A problem as a person reads it: the line, a caret under the place, the way out.

use std::fmt;

use crate::problem::{Excerpt, Problem};

/// The longest part of a line that is shown.
const MAX_WIDTH: usize = 100;
/// Where the place stands in a line that had to be cut.
const CONTEXT_BEFORE: usize = 40;
/// The longest piece of what the operator wrote that a message repeats.
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

/// The excerpt of `text` at the byte `offset`, `length` characters of it marked.
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

/// A piece of what the operator wrote, short and harmless on a terminal, in backquotes.
pub(crate) fn quote(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_QUOTE).map(visible).collect();
    if text.chars().nth(MAX_QUOTE).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// A tab is as wide as the caret line thinks, an escape sequence does nothing.
pub(crate) fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        // Marks that turn the direction of text would make a line read as what it is not.
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
    fn a_long_line_is_shown_around_the_place() {
        let line = format!("{}here{}", "x".repeat(5_000), "y".repeat(5_000));
        let Excerpt { text, before, length } = excerpt(&line, 5_000, 4);
        assert!(text.chars().count() <= MAX_WIDTH + 2, "{text}");
        assert_eq!(text.chars().skip(before).take(length).collect::<String>(), "here");
    }

    #[test]
    fn an_escape_sequence_never_reaches_the_terminal() {
        assert!(!quote("\u{1b}[2J").contains('\u{1b}'));
        assert!(!excerpt("a: \u{1b}[2J", 0, 1).text.contains('\u{1b}'));
    }
}
