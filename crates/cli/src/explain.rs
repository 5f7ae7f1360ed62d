//! `tidegate explain`: shows how a policy handles a request.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_policy::{BodyFacts, ExplainRequest, Matcher, Plan, compile, explain};
use tidegate_store::{Clock, SystemClock};

use crate::args::{ExplainArgs, Format};
use crate::exit::CommandOutcome;
use crate::file::{self, PolicyFolder};
use crate::print::{write_stderr, write_stdout};

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<CommandOutcome> {
    let plan = read_plan(&args.config)?;
    let headers =
        args.headers.iter().map(|line| parse_header(line)).collect::<anyhow::Result<HeaderMap>>()?;
    let request = ExplainRequest {
        method: &args.method,
        target: &args.path,
        headers: &headers,
        peer: args.from,
        body: BodyFacts::Complete(args.data.as_bytes()),
    };
    let matcher = Matcher::new(plan);
    let directory = matcher.plan().directory.clone();
    let explanation = explain(&matcher, &request, directory.as_deref(), SystemClock::new().now());
    let written = write_stdout(|output| match args.format {
        Format::Human => write!(output, "{explanation}"),
        Format::Json => {
            serde_json::to_writer_pretty(&mut *output, &explanation)?;
            writeln!(output)
        }
    });
    written.context("cannot write the result")?;
    Ok(CommandOutcome::Success)
}

/// The plan of a policy. Prints all problems of one that is invalid.
pub(crate) fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    let file = path.display().to_string();
    let bytes = file::read_policy_or_pipe(path)
        .map_err(|error| anyhow!("cannot read {file}: {}", file::describe_io_error(&error)))?;
    match compile(&file, &bytes, &PolicyFolder::of(path)) {
        Ok(compiled) => Ok(compiled.plan),
        Err(problems) => {
            write_stderr(problems);
            bail!("{file}: invalid policy; fix the problems listed above");
        }
    }
}

/// Parses `Name: value`.
fn parse_header(line: &str) -> anyhow::Result<(HeaderName, HeaderValue)> {
    let (name, value) =
        line.split_once(':').with_context(|| format!("invalid header `{line}`: expected `Name: value`"))?;
    // Only what HTTP removes: a no-break space belongs to the value.
    let (name, value) = (name.trim_matches([' ', '\t']), value.trim_matches([' ', '\t']));
    let (Ok(name), Ok(value)) = (name.parse(), value.parse()) else {
        bail!(
            "invalid header `{line}`: the name must be a token, the value must not contain control characters"
        );
    };
    Ok((name, value))
}
