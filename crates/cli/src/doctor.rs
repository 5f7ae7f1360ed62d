//! `tidegate doctor`: examines a Redis or Valkey store.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use tidegate_policy::{CompileOptions, compile_with};
use tidegate_redis::{Diagnosis, Endpoint, RedisConfig, diagnose};
use tidegate_store::SystemClock;

use crate::args::DoctorArgs;
use crate::exit::CommandOutcome;
use crate::file::{self, PolicyFolder};
use crate::print::{write_stderr, write_stdout};
use crate::serve::store::redis_config;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<CommandOutcome> {
    let mut config = match &args.config {
        Some(path) => config_of_policy(path, args.url.as_deref())?,
        None => RedisConfig::new(Endpoint::parse(args.url.as_deref().unwrap_or_default())?),
    };
    if let Some(prefix) = &args.prefix {
        config.prefix.clone_from(prefix);
    }
    if let Some(ca) = &args.ca {
        config.tls.ca = Some(read(ca)?);
    }
    if let (Some(certificate), Some(key)) = (&args.certificate, &args.key) {
        config.tls.client = Some((read(certificate)?, read(key)?));
    }
    if let Some(file) = &args.password_file {
        let password = String::from_utf8(read(file)?).context("the password is not UTF-8")?;
        config.password = Some(password.trim_end().to_owned());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let diagnosis = runtime.block_on(diagnose(&config, &SystemClock::new()));
    write_stdout(|output| write_text(&config, &diagnosis, output)).context("cannot write the result")?;
    Ok(if diagnosis.has_problems() { CommandOutcome::Failure } else { CommandOutcome::Success })
}

/// The store of the policy at `path`, with another URL if there is one.
fn config_of_policy(path: &Path, url: Option<&str>) -> anyhow::Result<RedisConfig> {
    let name = path.display().to_string();
    let bytes = file::read_policy(path)
        .map_err(|error| anyhow!("cannot read {name}: {}", file::describe_io_error(&error)))?;
    let options = CompileOptions { store_url: url, ..CompileOptions::default() };
    let plan = match compile_with(&name, &bytes, &PolicyFolder::of(path), options) {
        Ok(compiled) => compiled.plan.store,
        Err(problems) => {
            write_stderr(problems);
            bail!("{name}: invalid policy; fix the problems listed above");
        }
    };
    match &plan.url {
        Some(url) => redis_config(&plan, url),
        None => bail!("{name} has no `store.url`: its counters are in the memory of each gateway"),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write_text(config: &RedisConfig, diagnosis: &Diagnosis, output: &mut dyn Write) -> std::io::Result<()> {
    writeln!(output, "{}", config.endpoint)?;
    for item in &diagnosis.items {
        writeln!(output, "{:<8} {:<12} {}", item.level, item.subject, item.message)?;
    }
    Ok(())
}
