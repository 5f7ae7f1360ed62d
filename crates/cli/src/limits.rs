//! `tidegate limits`: prints the limits that clients of an API have to know.

use std::io::Write;

use anyhow::Context;
use tidegate_policy::published_limits;

use crate::args::{LimitsArgs, LimitsFormat};
use crate::exit::CommandOutcome;
use crate::explain::read_plan;
use crate::print::write_stdout;

pub(crate) fn run(args: &LimitsArgs) -> anyhow::Result<CommandOutcome> {
    let limits = published_limits(&read_plan(&args.config)?);
    let written = write_stdout(|output| match args.format {
        LimitsFormat::Markdown => write!(output, "{limits}"),
        LimitsFormat::Json => {
            serde_json::to_writer_pretty(&mut *output, &limits)?;
            writeln!(output)
        }
    });
    written.context("cannot write the result")?;
    Ok(CommandOutcome::Success)
}
