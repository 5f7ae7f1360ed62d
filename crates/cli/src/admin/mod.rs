//! Commands that call the admin API of a running gateway: `ban`, `unban`, `bans`, `override`, `breaker`,
//! `reset`, `client`, `status`, `reload`, `backup`.

mod client;
mod client_state;
mod nft;
mod status;
mod table;

use std::io::Write;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};
use tidegate_core::{TimeSpan, is_visible};
use tidegate_policy::span_text;

use crate::args::{
    BackupArgs, BanArgs, BansArgs, BansFormat, BreakerArgs, BreakerVerb, ClientArgs, Format, OverrideArgs,
    ReloadArgs, ResetArgs, StatusArgs, UnbanArgs,
};
use crate::exit::CommandOutcome;
use crate::print::write_stdout;
use client::AdminClient;
use table::TextTable;

pub(crate) fn ban(args: &BanArgs) -> anyhow::Result<CommandOutcome> {
    let client = AdminClient::from_args(&args.admin)?;
    let mut created = Vec::new();
    for subject in &args.subjects {
        let body = json!({ "subject": subject, "for": args.duration, "reason": args.reason });
        created.push(client.send(&Method::POST, "/v1/bans", Some(&body))?);
    }
    print_result(args.format, &Value::from(created), |bans| {
        let line = |ban: &Value| match text(ban, "left") {
            "" => format!("{} is banned\n", text(ban, "subject")),
            left => format!("{} is banned for {left}\n", text(ban, "subject")),
        };
        items(bans).map(line).collect()
    })
}

pub(crate) fn unban(args: &UnbanArgs) -> anyhow::Result<CommandOutcome> {
    let client = AdminClient::from_args(&args.admin)?;
    let mut removed = Vec::new();
    for subject in &args.subjects {
        let body = json!({ "subject": subject });
        removed.push(client.send(&Method::DELETE, "/v1/bans", Some(&body))?);
    }
    print_result(args.format, &Value::from(removed), |bans| items(bans).map(format_removed_ban).collect())
}

/// Says what has ended, and which counters still reject the client: they count what led to the lock-out.
fn format_removed_ban(ban: &Value) -> String {
    let mut lines = Vec::new();
    if ban["banned"] == true {
        lines.push(format!("ban removed: {}\n", text(ban, "subject")));
    }
    for lock_out in items(&ban["lock_outs"]) {
        let (client, rule) = (text(lock_out, "client"), text(lock_out, "rule"));
        lines.push(format!("lock-out ended: {client} under {rule}\n"));
        if let Some(seconds) = lock_out["full_for"].as_u64() {
            let left = span_text(TimeSpan::from_secs(seconds));
            // A hash does not suffice: the gateway may not remember the key.
            let client = if client.contains("…#") { "CLIENT (with the complete key)" } else { client };
            lines.push(format!(
                "  its counter is still full: the rule rejects requests for another {left}; to empty it: tidegate reset \
                 {client} --rule {rule}\n"
            ));
        }
    }
    lines.concat()
}

pub(crate) fn bans(args: &BansArgs) -> anyhow::Result<CommandOutcome> {
    let bans = AdminClient::from_args(&args.admin)?.send(&Method::GET, "/v1/bans", None)?;
    let bans = &bans["bans"];
    let format = match args.format {
        BansFormat::Human => Format::Human,
        BansFormat::Json => Format::Json,
        BansFormat::Nft => return print_text(&nft::format_sets(items(bans), args.lock_outs)?),
    };
    print_result(format, bans, |bans| {
        let mut table = TextTable::new(["SUBJECT", "SOURCE", "LEFT", "REASON"]);
        for ban in items(bans) {
            let left = if text(ban, "left").is_empty() { "permanent" } else { text(ban, "left") };
            table.row([text(ban, "subject"), text(ban, "source"), left, text(ban, "reason")]);
        }
        table.render_or("no bans")
    })
}

pub(crate) fn override_limit(args: &OverrideArgs) -> anyhow::Result<CommandOutcome> {
    let client = AdminClient::from_args(&args.admin)?;
    let (Some(name), Some(rule)) = (&args.client, &args.rule) else {
        let all = client.send(&Method::GET, "/v1/overrides", None)?;
        return print_result(args.format, &all["overrides"], format_overrides);
    };
    if args.end {
        let body = json!({ "client": name, "rule": rule });
        let removed = client.send(&Method::DELETE, "/v1/overrides", Some(&body))?;
        return print_result(args.format, &removed, |removed| {
            format!(
                "override removed: {} has the limit of rule {} again\n",
                text(removed, "client"),
                text(removed, "rule")
            )
        });
    }
    let Some(limit) = &args.limit else {
        bail!("missing limit; set one with --limit 200/m, or remove the override with --end")
    };
    let (requests, window) = crate::serve::source::parse_limit(limit)?;
    let mut body = json!({ "client": name, "rule": rule, "requests": requests, "window": window,
        "for": args.duration, "reason": args.reason });
    if let Some(algorithm) = &args.algorithm {
        body["algorithm"] = algorithm.as_str().into();
    }
    if let Some(burst) = args.burst {
        body["burst"] = burst.into();
    }
    let created = client.send(&Method::POST, "/v1/overrides", Some(&body))?;
    print_result(args.format, &json!([created]), format_overrides)
}

fn format_overrides(all: &Value) -> String {
    let mut table = TextTable::new(["CLIENT", "RULE", "LIMIT", "LEFT", "REASON"]);
    for one in items(all) {
        let burst = one["burst"].as_u64().map_or(String::new(), |burst| format!(", burst {burst}"));
        let algorithm = text(one, "algorithm");
        let limit = format!("{} per {}, {algorithm}{burst}", one["requests"], text(one, "window"));
        let left = if text(one, "left").is_empty() { "permanent" } else { text(one, "left") };
        table.row([text(one, "client"), text(one, "rule"), &limit, left, text(one, "reason")]);
    }
    table.render_or("no overrides")
}

pub(crate) fn breaker(args: &BreakerArgs) -> anyhow::Result<CommandOutcome> {
    let (action, result) = match args.action {
        BreakerVerb::Open => ("open", "forced open"),
        BreakerVerb::Close => ("close", "forced closed"),
        BreakerVerb::Reset => ("reset", "reset"),
    };
    let body = json!({ "upstream": args.upstream, "server": args.server, "action": action });
    let done = AdminClient::from_args(&args.admin)?.send(&Method::POST, "/v1/breakers", Some(&body))?;
    print_result(args.format, &done, |done| {
        let subject = match text(done, "server") {
            "" => text(done, "upstream").to_owned(),
            server => format!("{} {server}", text(done, "upstream")),
        };
        format!("circuit breaker {result}: {subject}\n")
    })
}

pub(crate) fn reset(args: &ResetArgs) -> anyhow::Result<CommandOutcome> {
    let body = json!({ "client": args.client, "rule": args.rule });
    let done = AdminClient::from_args(&args.admin)?.send(&Method::POST, "/v1/reset", Some(&body))?;
    print_result(args.format, &done, |done| {
        let rules: Vec<_> = items(&done["rules"]).filter_map(Value::as_str).collect();
        format!("counters reset: {} (rules: {})\n", text(done, "client"), rules.join(", "))
    })
}

pub(crate) fn client(args: &ClientArgs) -> anyhow::Result<CommandOutcome> {
    // Everything but letters and digits is encoded: a name may contain any character.
    let encode = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    let name: String = args.client.bytes().map(encode).collect();
    let path = format!("/v1/clients/{name}");
    let shown = AdminClient::from_args(&args.admin)?.send(&Method::GET, &path, None)?;
    print_result(args.format, &shown, client_state::format)
}

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<CommandOutcome> {
    let status = AdminClient::from_args(&args.admin)?.send(&Method::GET, "/v1/status", None)?;
    print_result(args.format, &status, status::format)
}

pub(crate) fn reload(args: &ReloadArgs) -> anyhow::Result<CommandOutcome> {
    let body = json!({ "force": args.force });
    let done = AdminClient::from_args(&args.admin)?.send(&Method::POST, "/v1/reload", Some(&body))?;
    print_result(args.format, &done, |done| {
        let changes: Vec<_> = items(&done["changes"]).filter_map(Value::as_str).collect();
        let plural = if changes.len() == 1 { "" } else { "s" };
        let lines: Vec<_> = changes.iter().map(|change| format!("  {change}\n")).collect();
        format!(
            "policy reloaded, {} change{plural}\n{}{}",
            lines.len(),
            lines.concat(),
            text(done, "warnings")
        )
    })
}

pub(crate) fn backup(args: &BackupArgs) -> anyhow::Result<CommandOutcome> {
    // A relative path is relative to the folder of this command, not to that of the gateway.
    let path = std::path::absolute(&args.path).context("invalid path")?;
    let path = path.to_str().context("invalid path: it must be valid UTF-8")?;
    let done = AdminClient::from_args(&args.admin)?.send(
        &Method::POST,
        "/v1/backup",
        Some(&json!({ "path": path })),
    )?;
    print_result(args.format, &done, |done| format!("backup written to {}\n", text(done, "path")))
}

/// Prints a result as JSON or as text.
fn print_result(
    format: Format,
    result: &Value,
    to_text: impl FnOnce(&Value) -> String,
) -> anyhow::Result<CommandOutcome> {
    print_text(&match format {
        Format::Json => format!("{result:#}\n"),
        Format::Human => replace_invisible(&to_text(result)),
    })
}

fn print_text(text: &str) -> anyhow::Result<CommandOutcome> {
    write_stdout(|output| output.write_all(text.as_bytes())).context("cannot write the result")?;
    Ok(CommandOutcome::Success)
}

/// Replaces characters that could change what a terminal shows, or be overlooked.
fn replace_invisible(text: &str) -> String {
    text.chars().map(|c| if is_visible(c) || c == '\n' { c } else { '\u{fffd}' }).collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}
