//! `tidegate doctor`: examines a Redis or Valkey store.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use tidegate_redis::{Diagnosis, Endpoint, RedisConfig, TlsMaterial, diagnose};
use tidegate_store::SystemClock;

use crate::args::DoctorArgs;
use crate::exit::CommandOutcome;
use crate::print::write_stdout;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<CommandOutcome> {
    let mut config = RedisConfig::new(Endpoint::parse(&args.url)?);
    config.tls = TlsMaterial {
        ca: args.ca.as_deref().map(read).transpose()?,
        client: match (&args.certificate, &args.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        },
    };
    if let Some(file) = &args.password_file {
        let password = String::from_utf8(read(file)?).context("the password is not UTF-8")?;
        config.password = Some(password.trim_end().to_owned());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let diagnosis = runtime.block_on(diagnose(&config, &SystemClock::new()));
    write_stdout(|output| write_text(&config, &diagnosis, output)).context("cannot write the result")?;
    Ok(if diagnosis.has_problems() { CommandOutcome::Failure } else { CommandOutcome::Success })
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
