//! The text of `tidegate client`.

use serde_json::Value;
use tidegate_core::TimeSpan;
use tidegate_policy::span_text;

use super::table::TextTable;
use super::{format_overrides, items, text};

/// Formats the response of `/v1/clients/NAME`.
pub(super) fn format(client: &Value) -> String {
    let mut parts = vec![format!("{}\n", text(client, "client"))];
    if client["exempt"] == true {
        parts.push("exempt from all limits (`clients.exempt`)\n".to_owned());
    }
    if client["banned"].is_object() {
        parts.push(format_ban(&client["banned"]));
    }
    for lock_out in items(&client["lock_outs"]) {
        let (client, rule, left) = (text(lock_out, "client"), text(lock_out, "rule"), text(lock_out, "left"));
        parts.push(format!("locked out by {rule} for {left}: {client}\n"));
    }
    let mut table = TextTable::new(["RULE", "COUNTER", "LIMIT", "LEFT", "STATE"]);
    for rule in items(&client["rules"]) {
        let state = match rule["retry_after"].as_u64() {
            Some(seconds) => format!("full for {}", seconds_text(seconds)),
            None if rule["reset_after"] == 0 => "unused".to_owned(),
            None => format!("reset in {}", seconds_text(rule["reset_after"].as_u64().unwrap_or_default())),
        };
        let mode = match text(rule, "mode") {
            "enforce" => String::new(),
            mode => format!(", {mode}"),
        };
        let left = rule["remaining"].to_string();
        let limit = format!("{}{mode}", text(rule, "limit"));
        table.row([text(rule, "rule"), text(rule, "counter"), &limit, &left, &state]);
    }
    for rule in items(&client["concurrent"]) {
        let (limit, in_use) =
            (rule["limit"].as_u64().unwrap_or_default(), rule["in_use"].as_u64().unwrap_or_default());
        let describe = format!("at most {limit} concurrent requests");
        let left = limit.saturating_sub(in_use).to_string();
        let state = format!("{in_use} in progress here");
        table.row([text(rule, "rule"), text(rule, "counter"), &describe, &left, &state]);
    }
    parts.push(table.render_or(&format!("no rule counts this client; {}", text(client, "hint"))));
    if items(&client["overrides"]).next().is_some() {
        parts.push(format!(
            "\nOverrides, in place of the limit of their rule:\n{}",
            format_overrides(&client["overrides"])
        ));
    }
    parts.concat()
}

fn format_ban(ban: &Value) -> String {
    let left = match text(ban, "left") {
        "" => String::new(),
        left => format!(" for {left}"),
    };
    let reason = match text(ban, "reason") {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    format!("banned by the {}{left}: {}{reason}\n", text(ban, "source"), text(ban, "subject"))
}

fn seconds_text(seconds: u64) -> String {
    span_text(TimeSpan::from_secs(seconds))
}
