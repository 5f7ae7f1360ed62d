//! The commands of this repository that the documentation names: benchmarks and tasks. Each must parse.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::run::{output, root};

/// Only parsed: a build of the peers takes minutes.
#[path = "../../bench-peers/src/arguments.rs"]
mod peer_arguments;

#[path = "../../bench/src/arguments.rs"]
mod bench_arguments;

/// The command line of `bench`, without its hidden subcommands.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct BenchArguments {
    #[command(subcommand)]
    bench: bench_arguments::Bench,
}

/// What a documented command starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `bench-peers`
    BenchPeers,
    /// `bench`
    Bench,
    /// `cargo xtask`
    Xtask,
}

/// A command in the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentedCommand {
    pub(crate) page: String,
    pub(crate) program: Program,
    /// The whole command.
    pub(crate) words: Vec<String>,
    /// The arguments of the program itself begin with this word.
    first_argument: usize,
}

impl DocumentedCommand {
    pub(crate) fn new(page: &str, text: &str) -> Option<Self> {
        let words = split(text);
        let (program, first_argument) = program(&words)?;
        Some(Self { page: page.to_owned(), program, words, first_argument })
    }

    pub(crate) fn arguments(&self) -> &[String] {
        &self.words[self.first_argument..]
    }

    /// Why the program would reject its arguments.
    pub(crate) fn problem(&self) -> Option<String> {
        let error = match self.program {
            Program::BenchPeers => parse_error::<peer_arguments::Arguments>(self.arguments()),
            Program::Bench => parse_error::<BenchArguments>(self.arguments()),
            Program::Xtask => parse_error::<crate::Args>(self.arguments()),
        };
        error.map(|error| format!("{}: `{}` does not work: {error}", self.page, self.words.join(" ")))
    }
}

/// The commands in all pages but the changelog, which has those of older versions too.
pub(crate) fn documented() -> anyhow::Result<Vec<DocumentedCommand>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]).current_dir(root());
    let pages = output(&mut list)?;
    let mut commands = Vec::new();
    for page in pages.lines().filter(|page| *page != "CHANGELOG.md" && root().join(page).exists()) {
        let text = fs::read_to_string(root().join(Path::new(page)))
            .with_context(|| format!("cannot read {page}"))?;
        commands.extend(code(&text).iter().filter_map(|text| DocumentedCommand::new(page, text)));
    }
    Ok(commands)
}

/// Documented commands that do not parse.
pub(crate) fn problems() -> anyhow::Result<Vec<String>> {
    Ok(documented()?.iter().filter_map(DocumentedCommand::problem).collect())
}

/// The first line of the message, unless the arguments are valid.
fn parse_error<P: CommandFactory + FromArgMatches>(arguments: &[String]) -> Option<String> {
    let words = std::iter::once("program").chain(arguments.iter().map(String::as_str));
    let error =
        P::command().try_get_matches_from(words).and_then(|found| P::from_arg_matches(&found)).err()?;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    (!is_help).then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// The program that a command starts, and the position of that program's first argument.
fn program(words: &[String]) -> Option<(Program, usize)> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let arguments = words.iter().position(|word| *word == "--").map_or(words.len(), |position| position + 1);
    match words[..] {
        ["cargo", "xtask", ..] => Some((Program::Xtask, 2)),
        ["bench-peers", "--", ..] => Some((Program::BenchPeers, 2)),
        ["cargo", "run", ..] if words.contains(&"bench-peers/Cargo.toml") => {
            Some((Program::BenchPeers, arguments))
        }
        ["cargo", "run", .., "-p" | "--package", "bench", "--", _]
        | ["cargo", "run", "--release", "-p" | "--package", "bench", ..] => Some((Program::Bench, arguments)),
        _ => None,
    }
}

/// The code in a page: the lines of its blocks, and the spans in backticks, which may be broken across lines.
fn code(page: &str) -> Vec<String> {
    let (mut in_block, mut blocks, mut prose) = (false, Vec::new(), String::new());
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            blocks.push(line.to_owned());
        } else {
            prose.push_str(line);
            // A blank line ends a paragraph and its spans: one that is never closed does not reach the next.
            prose.push(if line.trim().is_empty() { '\n' } else { ' ' });
        }
    }
    let spans = prose.lines().flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    blocks.into_iter().chain(spans.map(str::to_owned)).collect()
}

/// The words of a shell command up to a comment, a pipe or the next command.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in text.chars() {
        match (quote, character) {
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == character => quote = None,
            (None, '#' | '|' | '>' | ';' | '&') => break,
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<String> {
        DocumentedCommand::new("docs/x.md", text).unwrap_or_else(|| panic!("{text}")).problem()
    }

    #[test]
    fn documented_command_with_an_unknown_subcommand_or_option_is_a_problem() {
        for valid in [
            "cargo run --release --manifest-path bench-peers/Cargo.toml -- service",
            "cargo run --release --manifest-path bench-peers/Cargo.toml -- gateway --only refusing --rounds 3",
            "bench-peers -- decide --quick",
            "cargo run --release -p bench -- flood",
            "cargo xtask bench --quick # compares",
            "cargo xtask --help",
        ] {
            assert_eq!(problem(valid), None, "{valid}");
        }
        for invalid in [
            "cargo run --release --manifest-path bench-peers/Cargo.toml -- servce",
            "cargo run --release --manifest-path bench-peers/Cargo.toml -- decide --fast",
            "cargo run --release --manifest-path bench-peers/Cargo.toml",
            "cargo run --release -p bench -- floods",
            "cargo xtask benches",
        ] {
            let problem = problem(invalid).unwrap_or_else(|| panic!("{invalid} parses"));
            assert!(problem.contains("docs/x.md") && problem.contains(invalid), "{problem}");
        }
    }

    #[test]
    fn other_commands_are_not_checked() {
        for other in ["cargo run", "tidegate check", "cargo test -p bench", ""] {
            assert_eq!(DocumentedCommand::new("docs/x.md", other), None, "{other}");
        }
    }

    #[test]
    fn code_is_found_in_blocks_and_in_spans_that_are_broken_across_lines() {
        let page = "Run `cargo xtask\ntest` first.\n\n```sh\ncargo xtask tidy\nls\n```\n\nAn ` alone\n\nand `last`.\n";
        let found = code(page);
        assert_eq!(found[..3], ["cargo xtask tidy", "ls", "cargo xtask test"]);
        assert_eq!(found.last().map(String::as_str), Some("last"));
    }

    #[test]
    fn quoted_text_is_one_word() {
        assert_eq!(split("a --only 'b c' \"\" d | e"), ["a", "--only", "b c", "", "d"]);
    }
}
