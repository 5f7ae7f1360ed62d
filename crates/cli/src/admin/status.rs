//! The text of `tidegate status`.

use serde_json::Value;

use super::{items, text};

/// The last error of Redis is shown for this time; the log has the earlier ones.
const SHOWN_SECONDS: u64 = 60;

/// Formats the response of `/v1/status`.
pub(super) fn format(status: &Value) -> String {
    let durable = status["durable"]
        .as_str()
        .unwrap_or("not persisted; bans and overrides are lost when the gateway stops");
    let mut lines = vec![format!(
        "tidegate {} {}\n  policy       {}\n  connections  {}\n  bans         {} set by operators, {} in the policy\n  \
         overrides    {}\n  state        {durable}\n",
        text(status, "version"),
        if status["ready"] == true { "(ready)" } else { "(stopping)" },
        text(status, "policy"),
        status["connections"],
        status["bans"]["operator"],
        status["bans"]["policy"],
        status["overrides"],
    )];
    if let Some(reason) = status["reload"]["reason"].as_str() {
        let ago = text(&status["reload"], "failed");
        let result = match text(&status["reload"], "result") {
            "refused" => {
                format!("refused {ago} ago; if the loss is intended, run `tidegate reload --force`")
            }
            _ => format!("failed {ago} ago; the running policy stays active"),
        };
        lines.push(format!("  reload       {result}: {}\n", reason.replace('\n', "\n               ")));
    }
    if status["store"].is_object() {
        lines.push(format_store(&status["store"]));
    }
    for upstream in items(&status["upstreams"]) {
        lines.push(format_upstream(upstream));
    }
    for route in items(&status["routes"]) {
        lines.push(format!(
            "  route        {}: {}\n",
            text(route, "route"),
            format_bulkhead(&route["bulkhead"])
        ));
    }
    for rule in items(&status["rules"]) {
        lines.push(format!("  limit        {}: {}\n", text(rule, "name"), text(rule, "limit")));
    }
    for domain in items(&status["domains"]) {
        let name = text(domain, "domain");
        for limit in items(&domain["limits"]) {
            lines.push(format!(
                "  limit        {name}/{}: {}\n",
                text(limit, "descriptor"),
                text(limit, "limit")
            ));
        }
    }
    lines.concat()
}

fn format_store(store: &Value) -> String {
    let mode = match text(store, "mode") {
        "fallback" => "fails; limits are enforced as `on_store_failure` says".to_owned(),
        _ => match store["nodes"].as_u64() {
            Some(1) => "1 node".to_owned(),
            _ => format!("{} nodes", store["nodes"]),
        },
    };
    let lost = match store["lost_writes"].as_u64() {
        None | Some(0) => String::new(),
        Some(1) => "; lost writes once".to_owned(),
        Some(count) => format!("; lost writes {count} times"),
    };
    let other = match store["nodes_with_other_secret"].as_u64() {
        None | Some(0) => String::new(),
        Some(1) => "; 1 node has another secret and counts separately".to_owned(),
        Some(count) => format!("; {count} nodes have another secret and count separately"),
    };
    let error = &store["last_error"];
    let error = match error["seconds_ago"].as_u64() {
        Some(age @ ..SHOWN_SECONDS) => {
            format!("\n               Redis replied {age}s ago: {}", text(error, "text"))
        }
        Some(_) | None => String::new(),
    };
    format!("  store        {}: {mode}{lost}{other}{error}\n", text(store, "url"))
}

fn format_upstream(upstream: &Value) -> String {
    let mut facts = Vec::new();
    if upstream["breaker"].is_object() {
        facts.push(format!("breaker {}", format_breaker(&upstream["breaker"])));
    }
    if upstream["bulkhead"].is_object() {
        facts.push(format_bulkhead(&upstream["bulkhead"]));
    }
    if upstream["shed"].is_object() {
        let shed = &upstream["shed"];
        facts.push(format!("adaptive limit {} of {} in use", shed["in_flight"], shed["limit"]));
    }
    let budget = &upstream["retries"];
    facts.push(format!("retries: {} sent, {} allowed now", budget["sent"], budget["remaining"]));
    let mut text_lines = format!("  upstream     {}: {}\n", text(upstream, "name"), facts.join("; "));
    let servers = items(&upstream["servers"]).map(|server| {
        format!(
            "    server     {}
",
            format_server(server)
        )
    });
    servers.for_each(|line| text_lines.push_str(&line));
    text_lines
}

fn format_server(server: &Value) -> String {
    let failure = &server["last_failure"];
    let is_failing = failure["failing_seconds"].is_u64();
    let health = match (is_failing || server["healthy"] == true, server["ejected_for"].as_u64()) {
        (false, _) => "unhealthy".to_owned(),
        (true, Some(seconds)) => format!("ejected for {seconds}s"),
        (true, None) if is_failing => "failing".to_owned(),
        (true, None) => "healthy".to_owned(),
    };
    let failure = match (failure["failing_seconds"].as_u64(), failure["seconds_ago"].as_u64()) {
        (Some(since), Some(last)) => format!(
            "\n               {} failures since {since}s ago, the last one {last}s ago: {}",
            failure["failures"],
            text(failure, "cause")
        ),
        (None, Some(last)) => {
            format!("\n               last failure {last}s ago: {}", text(failure, "cause"))
        }
        (_, None) => String::new(),
    };
    let breaker = if server["breaker"].is_object() {
        format!(", breaker {}", format_breaker(&server["breaker"]))
    } else {
        String::new()
    };
    format!(
        "{}: {health}, in flight: {}, connections: {}{breaker}{failure}",
        text(server, "address"),
        server["in_flight"],
        server["connections"]
    )
}

fn format_breaker(breaker: &Value) -> String {
    let state = text(breaker, "state").replace('_', " ");
    match breaker["open_for"].as_u64() {
        Some(0) => format!("{state}, the next request is a probe"),
        Some(seconds) => format!("{state}, next probe in {seconds}s"),
        None => state,
    }
}

fn format_bulkhead(bulkhead: &Value) -> String {
    let rejected = &bulkhead["rejected"];
    format!(
        "bulkhead {} of {} in use, {} waiting, {rejected} rejected",
        bulkhead["in_use"], bulkhead["limit"], bulkhead["waiting"]
    )
}
