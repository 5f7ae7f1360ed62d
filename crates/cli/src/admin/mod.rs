//! Commands that ask a gateway that runs: `ban`, `unban`, `bans`, `override`, `reset`, `status`, `backup`.

mod client;
mod nft;
mod table;

use std::io::Write;

use anyhow::{Context, bail};
use http::Method;
use serde_json::{Value, json};

use crate::args::{
    BackupArgs, BanArgs, BansArgs, BansFormat, Format, OverrideArgs, ResetArgs, StatusArgs, UnbanArgs,
};
use crate::exit::Exit;
use crate::print::to_stdout;
use client::AdminClient;
use table::Table;

pub(crate) fn ban(args: &BanArgs) -> anyhow::Result<Exit> {
    let api = AdminClient::find(&args.admin)?;
    let mut made = Vec::new();
    for subject in &args.subjects {
        let body = json!({ "subject": subject, "for": args.lasting, "reason": args.reason });
        made.push(api.ask(&Method::POST, "/v1/bans", Some(&body))?);
    }
    told(args.format, &Value::from(made), |bans| {
        let line = |ban: &Value| match text(ban, "left") {
            "" => format!("{} is banned\n", text(ban, "subject")),
            left => format!("{} is banned for {left}\n", text(ban, "subject")),
        };
        items(bans).map(line).collect()
    })
}

pub(crate) fn unban(args: &UnbanArgs) -> anyhow::Result<Exit> {
    let api = AdminClient::find(&args.admin)?;
    let mut taken_back = Vec::new();
    for subject in &args.subjects {
        let body = json!({ "subject": subject });
        taken_back.push(api.ask(&Method::DELETE, "/v1/bans", Some(&body))?);
    }
    told(args.format, &Value::from(taken_back), |bans| {
        let line = |ban: &Value| format!("{} is no longer banned\n", text(ban, "subject"));
        items(bans).map(line).collect()
    })
}

pub(crate) fn bans(args: &BansArgs) -> anyhow::Result<Exit> {
    let bans = AdminClient::find(&args.admin)?.ask(&Method::GET, "/v1/bans", None)?;
    let bans = &bans["bans"];
    let format = match args.format {
        BansFormat::Human => Format::Human,
        BansFormat::Json => Format::Json,
        BansFormat::Nft => return written(&nft::sets(items(bans))?),
    };
    told(format, bans, |bans| {
        let mut table = Table::new(["SUBJECT", "SOURCE", "LEFT", "REASON"]);
        for ban in items(bans) {
            let left = if text(ban, "left").is_empty() { "no end" } else { text(ban, "left") };
            table.row([text(ban, "subject"), text(ban, "source"), left, text(ban, "reason")]);
        }
        table.or("nobody is banned")
    })
}

pub(crate) fn override_limit(args: &OverrideArgs) -> anyhow::Result<Exit> {
    let api = AdminClient::find(&args.admin)?;
    let (Some(client), Some(rule)) = (&args.client, &args.rule) else {
        let all = api.ask(&Method::GET, "/v1/overrides", None)?;
        return told(args.format, &all["overrides"], overrides);
    };
    if args.end {
        let body = json!({ "client": client, "rule": rule });
        let ended = api.ask(&Method::DELETE, "/v1/overrides", Some(&body))?;
        return told(args.format, &ended, |ended| {
            format!("{} has the limit of {} again\n", text(ended, "client"), text(ended, "rule"))
        });
    }
    let Some(limit) = &args.limit else { bail!("say which limit: --limit 200/m, or --end to end one") };
    let (requests, window) = crate::serve::source::parts_of_limit(limit)?;
    let mut body = json!({ "client": client, "rule": rule, "requests": requests, "window": window,
        "for": args.lasting, "reason": args.reason });
    if let Some(algorithm) = &args.algorithm {
        body["algorithm"] = algorithm.as_str().into();
    }
    if let Some(burst) = args.burst {
        body["burst"] = burst.into();
    }
    let made = api.ask(&Method::POST, "/v1/overrides", Some(&body))?;
    told(args.format, &json!([made]), overrides)
}

fn overrides(all: &Value) -> String {
    let mut table = Table::new(["CLIENT", "RULE", "LIMIT", "LEFT", "REASON"]);
    for one in items(all) {
        let burst = one["burst"].as_u64().map_or(String::new(), |burst| format!(", burst {burst}"));
        let algorithm = text(one, "algorithm");
        let limit = format!("{} per {}, {algorithm}{burst}", one["requests"], text(one, "window"));
        let left = if text(one, "left").is_empty() { "no end" } else { text(one, "left") };
        table.row([text(one, "client"), text(one, "rule"), &limit, left, text(one, "reason")]);
    }
    table.or("nobody has a limit of their own")
}

pub(crate) fn reset(args: &ResetArgs) -> anyhow::Result<Exit> {
    let body = json!({ "client": args.client, "rule": args.rule });
    let done = AdminClient::find(&args.admin)?.ask(&Method::POST, "/v1/reset", Some(&body))?;
    told(args.format, &done, |done| {
        let rules: Vec<_> = items(&done["rules"]).filter_map(Value::as_str).collect();
        format!("{} starts afresh under {}\n", text(done, "client"), rules.join(", "))
    })
}

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<Exit> {
    let status = AdminClient::find(&args.admin)?.ask(&Method::GET, "/v1/status", None)?;
    told(args.format, &status, |status| {
        let durable = status["durable"].as_str().unwrap_or("nowhere: they end with the process");
        let mut lines = vec![format!(
            "tidegate {} {}\n  policy       {}\n  connections  {}\n  bans         {} by operators, {} by the policy\n  \
             overrides    {}\n  kept in      {durable}\n",
            text(status, "version"),
            if status["ready"] == true { "is ready" } else { "is stopping" },
            text(status, "policy"),
            status["connections"],
            status["bans"]["operator"],
            status["bans"]["policy"],
            status["overrides"],
        )];
        for upstream in items(&status["upstreams"]) {
            let servers: Vec<_> = items(&upstream["servers"]).filter_map(Value::as_str).collect();
            lines.push(format!("  upstream     {}: {}\n", text(upstream, "name"), servers.join(", ")));
        }
        for rule in items(&status["rules"]) {
            lines.push(format!("  limit        {}: {}\n", text(rule, "name"), text(rule, "limit")));
        }
        lines.concat()
    })
}

pub(crate) fn backup(args: &BackupArgs) -> anyhow::Result<Exit> {
    // Relative to where this command runs, not to where the gateway does.
    let path = std::path::absolute(&args.path).context("that is no path")?;
    let path = path.to_str().context("the path is not UTF-8, which JSON wants")?;
    let done =
        AdminClient::find(&args.admin)?.ask(&Method::POST, "/v1/backup", Some(&json!({ "path": path })))?;
    told(args.format, &done, |done| format!("written to {}\n", text(done, "path")))
}

/// The answer, for tools or for people.
fn told(format: Format, answer: &Value, human: impl FnOnce(&Value) -> String) -> anyhow::Result<Exit> {
    written(&match format {
        Format::Json => format!("{answer:#}\n"),
        Format::Human => visible(&human(answer)),
    })
}

fn written(text: &str) -> anyhow::Result<Exit> {
    to_stdout(|output| output.write_all(text.as_bytes())).context("cannot write the result")?;
    Ok(Exit::Done)
}

/// Nothing that moves a cursor or hides what follows.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}
