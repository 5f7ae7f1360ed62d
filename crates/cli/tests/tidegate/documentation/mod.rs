//! The commands that README.md and the pages in docs/ show, run by a real shell with the real binary.

mod api_users;
mod links;
mod pages;
mod readme;

use std::path::Path;
use std::process::{Command, Output};

use crate::program::{PATH, ROOT, command};

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    /// The line of the page on which it starts, for messages.
    line: usize,
    /// The word after the fence; empty if there is none.
    language: String,
    text: String,
}

/// Reads a file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

/// All fenced blocks of a page, in order.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let body =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```"));
        let text = body.flat_map(|line| [line, "\n"]).collect();
        blocks.push(Block { line: number + 1, language: language.to_owned(), text });
    }
    blocks
}

/// Runs commands in `folder` by a shell that finds the binary as `tidegate`. The shell stops at the first that fails.
fn shell(folder: &Path, commands: &str) -> Output {
    let binaries = Path::new(PATH).parent().unwrap().display();
    let path = format!("{binaries}:{}", std::env::var("PATH").unwrap());
    let environment = command();
    let home = environment.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", commands]).current_dir(folder).envs(home).env("PATH", path);
    shell.output().unwrap()
}
