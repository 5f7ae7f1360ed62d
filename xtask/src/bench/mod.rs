//! `cargo xtask bench`: the documented benchmarks, and a guard that compares a few of their rows with recorded ratios.

mod baseline;
mod guard;
mod measurement;
mod progress;
mod rows;

use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::commands::{DocumentedCommand, Program, documented};
use crate::run::{self, root};
use rows::{ROWS, Row};

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run one benchmark: decide, gateway, redis, resilience, service, or one of `bench`.
    name: Option<String>,
    /// Measure some rows, in at most 4 minutes, and compare them with the ratios recorded for this processor.
    #[arg(long, group = "mode")]
    quick: bool,
    /// Measure the rows of --quick three times and record the ratios for this processor in bench-peers/baseline.json.
    #[arg(long, group = "mode")]
    record: bool,
    /// Start each documented benchmark once, with as little to measure as possible, to see that the command works.
    #[arg(long, group = "mode")]
    documented: bool,
    /// Only the rows (with --documented: the commands) that contain this.
    #[arg(long, value_name = "TEXT", requires = "mode")]
    only: Option<String>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.quick {
        return guard::compare(&selected_rows(options)?);
    }
    if options.record {
        return guard::record(&selected_rows(options)?);
    }
    if options.documented { start_all(options) } else { run_all(options) }
}

fn selected_rows(options: &Options) -> anyhow::Result<Vec<Row>> {
    let is_selected = |row: &&Row| {
        options.name.as_ref().is_none_or(|name| row.bench == name)
            && options.only.as_ref().is_none_or(|text| row.name().contains(text))
    };
    let selected: Vec<_> = ROWS.iter().filter(is_selected).copied().collect();
    if selected.is_empty() {
        bail!("no row is selected; there are:\n{}", ROWS.map(|row| row.name()).join("\n"));
    }
    Ok(selected)
}

/// The documented benchmarks, each once.
fn selected_commands(options: &Options) -> anyhow::Result<Vec<DocumentedCommand>> {
    let mut selected: Vec<DocumentedCommand> = Vec::new();
    for command in documented()? {
        let is_new = !selected.iter().any(|one| one.arguments() == command.arguments());
        // A page may show a command without `cargo`, as an abbreviation, or a part of a benchmark.
        let is_complete = command.words[0] == "cargo" && command.arguments().len() == 1;
        let is_benchmark = matches!(command.program, Program::BenchPeers | Program::Bench);
        if is_new && is_complete && is_benchmark {
            selected.push(command);
        }
    }
    let names: Vec<_> = selected.iter().map(|command| command.arguments().join(" ")).collect();
    selected.retain(|command| {
        options.name.as_ref().is_none_or(|name| command.arguments().first() == Some(name))
            && options.only.as_ref().is_none_or(|text| command.words.join(" ").contains(text))
    });
    if selected.is_empty() {
        bail!("no documented benchmark is selected; there are: {}", names.join(", "));
    }
    Ok(selected)
}

/// Runs the benchmarks as documented. All run, even if one misses a bar.
fn run_all(options: &Options) -> anyhow::Result<ExitCode> {
    let mut failed = Vec::new();
    for command in selected_commands(options)? {
        if let Err(error) = run::run(&mut process(&command)) {
            println!("{error:#}");
            failed.push(command.arguments().join(" "));
        }
    }
    if !failed.is_empty() {
        bail!("failed, or missed a bar: {}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the benchmarks as documented, with options that make them short.
fn start_all(options: &Options) -> anyhow::Result<ExitCode> {
    let commands = selected_commands(options)?;
    for command in &commands {
        start(command).with_context(|| format!("{}: `{}`", command.page, command.words.join(" ")))?;
    }
    println!("{} documented benchmarks work", commands.len());
    Ok(ExitCode::SUCCESS)
}

fn start(command: &DocumentedCommand) -> anyhow::Result<()> {
    let name = command.arguments().first().context("no benchmark")?;
    let mut process = process(command);
    let Some(row) = ROWS.iter().find(|row| command.program == Program::BenchPeers && row.bench == name)
    else {
        // Nothing makes our own benchmarks shorter: they only start.
        return run::run(process.arg("--help"));
    };
    let json = measurement::json_file()?;
    process.args(&row.arguments(1)[1..]).arg("--json").arg(&json);
    // One round may miss a bar. With a figure for both contenders, the benchmark works.
    let result = run::run(&mut process);
    let figures = std::fs::read_to_string(&json);
    let Ok(figures) = figures else {
        return result.and_then(|()| bail!("it wrote no figures"));
    };
    measurement::ratio(row, &serde_json::from_str(&figures)?).map(drop)
}

fn process(command: &DocumentedCommand) -> Command {
    let mut process = Command::new(&command.words[0]);
    process.args(&command.words[1..]).current_dir(root());
    process
}
