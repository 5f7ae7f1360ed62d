//! Renders a problem for people: the source line, a caret under the position, a hint.

use std::fmt;
use std::ops::Range;

use tidegate_core::is_visible;

use crate::problem::{Excerpt, Problem};

/// The number of characters of a line that an excerpt shows.
const MAX_WIDTH: usize = 100;
/// The number of characters shown before the position in a shortened line.
const CONTEXT_BEFORE: usize = 40;
/// The number of characters that are read on either side of the position; a login of a URL is shorter.
const MAX_READ: usize = 1_000;
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

/// Returns the line of `text` at the byte `offset`, with `length` characters marked. Logins of URLs are replaced by `…`: a
/// store's URL may contain a password, and problems are logged.
pub(crate) fn excerpt(text: &str, offset: usize, length: usize) -> Excerpt {
    let offset = (0..=offset.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let (before, after) = text.split_at(offset);
    let is_break = |c: char| c == '\n' || c == '\r';
    let mut line: Vec<char> = before.chars().rev().take_while(|c| !is_break(*c)).take(MAX_READ).collect();
    line.reverse();
    let position = line.len();
    line.extend(after.chars().take_while(|c| !is_break(*c)).take(MAX_READ));
    let marked = position..position.saturating_add(length).min(line.len());
    let (line, marked) = without_logins(&line, marked);
    let (mut before, after) = line.split_at(marked.start.min(line.len()));
    let mut cut = "";
    if before.len() > CONTEXT_BEFORE * 2 {
        before = before.get(before.len() - CONTEXT_BEFORE..).unwrap_or_default();
        cut = "…";
    }
    let room = MAX_WIDTH.saturating_sub(before.len());
    let more = if after.len() > room { "…" } else { "" };
    let shown: String = before.iter().chain(after.iter().take(room)).map(|&c| visible(c)).collect();
    Excerpt {
        text: format!("{cut}{shown}{more}").trim_end().to_owned(),
        before: before.len() + cut.chars().count(),
        length: marked.len().min(after.len().min(room)).max(1),
    }
}

/// Replaces each login in `line` by `…`. Returns the part that then corresponds to `marked`, too.
fn without_logins(line: &[char], marked: Range<usize>) -> (Vec<char>, Range<usize>) {
    let logins = logins(line);
    let mut redacted = Vec::with_capacity(line.len());
    let (mut start, mut end) = (None, None);
    for (at, c) in line.iter().enumerate() {
        let login = logins.iter().find(|login| login.contains(&at));
        // A position inside a login becomes that of its replacement.
        let place = redacted.len() - usize::from(login.is_some_and(|login| login.start < at));
        start = start.or((at >= marked.start).then_some(place));
        end = end.or((at >= marked.end).then_some(place));
        match login {
            None => redacted.push(*c),
            Some(login) if login.start == at => redacted.push('…'),
            Some(_) => {}
        }
    }
    let all = redacted.len();
    (redacted, start.unwrap_or(all)..end.unwrap_or(all))
}

/// The parts of a line that may be the login of a URL: from `://`, or from the value of a key `url` without a scheme, to the
/// last `@` before the next URL. A password that is not encoded may contain any other character.
fn logins(line: &[char]) -> Vec<Range<usize>> {
    let ends_at = |at: usize, text: &str| {
        line.get(..at).is_some_and(|head| head.iter().rev().copied().take(text.len()).eq(text.chars().rev()))
    };
    let mut starts: Vec<usize> = (0..=line.len()).filter(|&at| ends_at(at, "://")).collect();
    if starts.is_empty() {
        let key =
            (0..=line.len()).find(|&at| ends_at(at, "url:") || ends_at(at, "url\":") || ends_at(at, "url':"));
        let is_value =
            |at: &usize| line.get(*at).is_some_and(|c| !c.is_whitespace() && !['"', '\''].contains(c));
        starts.extend(key.and_then(|key| (key..line.len()).find(is_value)));
    }
    let ends = starts.iter().skip(1).copied().chain([line.len()]);
    let login = |(start, end): (&usize, usize)| {
        let length = line.get(*start..end)?.iter().rposition(|c| *c == '@')?;
        (length > 0).then_some(*start..*start + length)
    };
    starts.iter().zip(ends).filter_map(login).collect()
}

/// Quotes text of the policy in backquotes, shortened and without control characters.
pub(crate) fn quote(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_QUOTE).map(visible).collect();
    if text.chars().nth(MAX_QUOTE).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// Replaces characters that would misalign the caret line, change the terminal's state or be overlooked.
pub(crate) fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if is_visible(c) => c,
        _ => '\u{fffd}',
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
        assert_eq!(quote("a\u{ad}b\u{e0041}"), "`a\u{fffd}b\u{fffd}`");
    }

    #[test]
    fn excerpt_hides_the_login_of_a_url() {
        for (line, at, shown, marked) in [
            ("  url: redis://:hunter2@cache:0", "redis", "  url: redis://…@cache:0", "redis://…@cache:0"),
            (
                "{ url: 'redis://u:hun@ter2@a', timout: 1 }",
                "timout",
                "{ url: 'redis://…@a', timout: 1 }",
                "timout: 1 }",
            ),
            ("url: \":hunter2@cache\"", "cache", "url: \"…@cache\"", "cache\""),
            ("\"url\" : x, url: u:hunter2@cache", "hunter2", "\"url\" : x, url: …@cache", "…@cache"),
            (
                "[redis://hunter2@a, redis://hunter2@b]",
                "redis",
                "[redis://…@a, redis://…@b]",
                "redis://…@a, redis://…@b]",
            ),
            ("key: a@b", "a@b", "key: a@b", "a@b"),
            ("a: http://b/@c", "b/@c", "a: http://…@c", "…@c"),
        ] {
            let Excerpt { text, before, length } = excerpt(line, line.find(at).unwrap(), usize::MAX);
            assert_eq!(text, shown);
            assert_eq!(text.chars().skip(before).take(length).collect::<String>(), marked, "{line}");
        }
    }

    #[test]
    fn excerpt_of_a_long_line_hides_a_login_that_is_cut() {
        let line = format!("url: redis://:{}@cache, x: 1", "hunter2".repeat(40));
        for at in [0, line.len() - 4, 100] {
            assert!(!excerpt(&line, at, 1).text.contains("hunter"), "{at}");
        }
    }
}
