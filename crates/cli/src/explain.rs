//! `tidegate explain`: what a policy would do with a request, and why.

use std::io::Write;

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_policy::{ExplainRequest, Matcher, compile, explain};
use tidegate_store::{Clock, SystemClock};

use crate::args::{ExplainArgs, Format};
use crate::exit::Exit;
use crate::file::{self, Folder};
use crate::print::to_stdout;

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let file = args.config.display().to_string();
    let bytes = file::policy(&args.config).with_context(|| format!("{file} cannot be read"))?;
    let plan = match compile(&file, &bytes, &Folder::of(&args.config)) {
        Ok(compiled) => compiled.plan,
        Err(problems) => {
            eprint!("{problems}");
            bail!("{file} is no good policy");
        }
    };
    let headers = args.headers.iter().map(|line| header(line)).collect::<anyhow::Result<HeaderMap>>()?;
    let request =
        ExplainRequest { method: &args.method, target: &args.path, headers: &headers, peer: args.from };
    let matcher = Matcher::new(plan);
    let directory = matcher.plan().directory.clone();
    let explanation = explain(&matcher, &request, directory.as_deref(), SystemClock::new().now());
    let written = to_stdout(|output| match args.format {
        Format::Human => write!(output, "{explanation}"),
        Format::Json => {
            serde_json::to_writer_pretty(&mut *output, &explanation)?;
            writeln!(output)
        }
    });
    written.context("cannot write the result")?;
    Ok(Exit::Done)
}

/// `Name: value`.
fn header(line: &str) -> anyhow::Result<(HeaderName, HeaderValue)> {
    let (name, value) =
        line.split_once(':').with_context(|| format!("`{line}` is no header; write `Name: value`"))?;
    let name = name.trim().parse().with_context(|| format!("`{name}` is no header's name"))?;
    Ok((name, value.trim().parse().context("a header's value holds a control character")?))
}
