//! The names on which operators rely (metrics, log events, error codes, alerts) are the same in the code, in docs/ and in
//! contrib/.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::run::root;

const OBSERVABILITY: &str = "docs/observability.md";
const OPERATIONS: &str = "docs/operations.md";
const GATEWAY: &str = "docs/gateway.md";
const ALERTS: &str = "contrib/prometheus/tidegate.rules.yml";

/// How the names of metrics begin.
const METRIC_PREFIXES: [&str; 4] = ["tidegate_", "rate_limit_", "process_", "redis_connection_"];
/// What Prometheus appends to the name of a histogram.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];
/// Code before the name of a log event.
const EVENT_MARKERS: [&str; 4] = ["event = \"", "event(\"", "event_with_details(\"", "JsonLine::new("];
/// Code before two names of log events, of which one is chosen; the code ends with `;`.
const EVENT_CHOICES: [&str; 2] = ["let event = ", "let (event, "];
/// Code before an error code of the admin API.
const ADMIN_ERRORS: [&str; 3] = ["ApiError::new(", "Self::new(", "unavailable("];

type Names = BTreeSet<String>;

/// The names in the product code.
#[derive(Debug, Default)]
pub(crate) struct NamesInCode {
    metrics: Names,
    events: Names,
    gateway_errors: Names,
    /// The entries of the catalogue of refusals and their codes.
    refusals: BTreeMap<String, String>,
    /// The entries that the gateway uses.
    used_refusals: Names,
    admin_errors: Names,
}

impl NamesInCode {
    /// Adds the names of a product file; `text` has no test modules.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let is_metric = |text: &&str| METRIC_PREFIXES.iter().any(|prefix| text.starts_with(prefix));
        self.metrics.extend(literals(text).filter(is_metric).map(str::to_owned));
        let choices = EVENT_CHOICES.iter().flat_map(|marker| text.split(marker).skip(1));
        let choices = choices.filter_map(|rest| rest.split(';').next());
        // Other literals of such a statement are parts of messages: events have an underscore.
        self.events.extend(choices.flat_map(literals).filter(|name| name.contains('_')).map(str::to_owned));
        self.events.extend(EVENT_MARKERS.iter().flat_map(|marker| literals_after(text, marker)));
        if path == "crates/policy/src/request.rs" {
            self.gateway_errors.extend(literals_after(text, "=> "));
        } else if path == "crates/headers/src/refusal.rs" {
            let entries = text.split("pub const ").skip(1).filter_map(|entry| entry.split_once(": Self"));
            let codes = entries.filter_map(|(name, entry)| Some((name, literals(entry).next()?)));
            self.refusals.extend(codes.map(|(name, code)| (name.to_owned(), code.to_owned())));
        } else if ["crates/gateway/src/error.rs", "crates/limiter/src/ruling.rs"].contains(&path) {
            let entries = text.split("RefusalEntry::").skip(1);
            for entry in entries.filter_map(|entry| entry.split(';').next()) {
                let end = entry.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(entry.len());
                match entry.get(..end) {
                    Some("new" | "unavailable") => {
                        self.gateway_errors.extend(literals(entry).next().map(str::to_owned));
                    }
                    name => self.used_refusals.extend(name.map(str::to_owned)),
                }
            }
        } else if path.starts_with("crates/admin/src/") {
            self.admin_errors.extend(ADMIN_ERRORS.iter().flat_map(|marker| literals_after(text, marker)));
        }
    }

    /// Compares these names with the documentation.
    pub(crate) fn problems(&mut self) -> anyhow::Result<Vec<String>> {
        let used = self.used_refusals.iter().filter_map(|name| self.refusals.get(name));
        self.gateway_errors.extend(used.cloned());
        // Error codes of interfaces, such as `rate_limit_exceeded`, can look like metrics.
        self.metrics.retain(|name| !self.gateway_errors.contains(name));
        let read =
            |path: &str| fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"));
        let (observability, operations) = (read(OBSERVABILITY)?, read(OPERATIONS)?);
        let alerts = read(ALERTS)?;
        let alerts =
            alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned);
        let mut problems = Vec::new();
        for (what, in_code, page, documented) in [
            ("metric", &self.metrics, OBSERVABILITY, column(&observability, "| metric |", 1)),
            ("log event", &self.events, OBSERVABILITY, column(&observability, "| event |", 1)),
            ("error code", &self.gateway_errors, GATEWAY, column(&read(GATEWAY)?, "| status | reason |", 3)),
            ("error code", &self.admin_errors, OPERATIONS, column(&operations, "| error |", 1)),
            ("alert", &alerts.collect(), OPERATIONS, column(&operations, "| alert |", 1)),
        ] {
            problems.extend(differences(what, in_code, page, &documented));
        }
        for path in texts()? {
            let unknown = metrics_in(&read(&path)?).into_iter().filter(|name| !self.knows_metric(name));
            problems.extend(unknown.map(|name| format!("{path}: there is no metric `{name}`")));
        }
        Ok(problems)
    }

    fn knows_metric(&self, name: &str) -> bool {
        let names = HISTOGRAM_SUFFIXES.iter().filter_map(|suffix| name.strip_suffix(suffix)).chain([name]);
        self.gateway_errors.contains(name) || names.into_iter().any(|name| self.metrics.contains(name))
    }
}

/// The documentation and the files in contrib/ that can name metrics.
fn texts() -> anyhow::Result<Vec<String>> {
    let mut texts = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned()];
    for folder in ["docs", "contrib/prometheus", "contrib/grafana"] {
        for file in fs::read_dir(root().join(folder))? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if Path::new(&name).extension().is_some_and(|ending| ending != "svg") {
                texts.push(format!("{folder}/{name}"));
            }
        }
    }
    Ok(texts)
}

/// What only one of the two sets has.
fn differences<'a>(
    what: &'a str,
    in_code: &'a Names,
    page: &'a str,
    documented: &'a Names,
) -> impl Iterator<Item = String> + 'a {
    let missing = in_code.difference(documented);
    let unknown = documented.difference(in_code);
    missing
        .map(move |name| format!("{page}: the {what} `{name}` is not documented"))
        .chain(unknown.map(move |name| format!("{page}: there is no {what} `{name}`")))
}

/// The words in backticks in one column of the table whose header starts with `header`.
fn column(page: &str, header: &str, index: usize) -> Names {
    let rows = page.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(index));
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    words.filter(|word| word.chars().all(|c| c.is_alphanumeric() || c == '_')).map(str::to_owned).collect()
}

/// The words of a text that begin like metrics.
fn metrics_in(text: &str) -> Names {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    // `tidegate_client::` is a path of a crate.
    let is_metric = |word: &&str| {
        !word.contains("::")
            && METRIC_PREFIXES.iter().any(|prefix| word.starts_with(prefix) && word != prefix)
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

/// The string literals of some code that are names.
fn literals(code: &str) -> impl Iterator<Item = &str> {
    code.lines().flat_map(|line| line.split('"').skip(1).step_by(2)).filter(|text| is_name(text))
}

/// The first string literal of each statement that contains the marker, after the marker, if it is a name.
fn literals_after(code: &str, marker: &str) -> Vec<String> {
    let opens = usize::from(!marker.ends_with('"'));
    let places = code.split(marker).skip(1).filter_map(|rest| rest.split(';').next());
    let names = places.filter_map(|rest| rest.split('"').nth(opens));
    names.filter(|name| is_name(name)).map(str::to_owned).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Names {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_in_code_are_found_where_they_are_defined() {
        let mut code = NamesInCode::default();
        code.add(
            "crates/cli/src/x.rs",
            "page.single(\"tidegate_bans\", …);\ntracing::info!(event = \"started\", \"listening\");\n\
             let (event, result) =\n if a { (\"server_up\", \"passed\") } else { (\"server_down\", \"failed\") };",
        );
        code.add("crates/gateway/src/error.rs", "(\"no_route\", \"No route.\"), from_static(\"close\")");
        code.add(
            "crates/admin/src/x.rs",
            "ApiError::new(\n    StatusCode::NOT_FOUND,\n    \"not_banned\",\n",
        );
        assert_eq!(code.metrics, names(&["tidegate_bans"]));
        assert_eq!(code.events, names(&["started", "server_up", "server_down"]));
        assert_eq!(code.gateway_errors, names(&["no_route"]));
        assert_eq!(code.admin_errors, names(&["not_banned"]));
    }

    #[test]
    fn table_column_ends_with_its_table() {
        let page =
            "| event | when |\n|---|---|\n| `a`, `b_c` | `d` |\n\n| other | x |\n|---|---|\n| `e` | |\n";
        assert_eq!(column(page, "| event |", 1), names(&["a", "b_c"]));
    }

    #[test]
    fn names_in_one_place_only_are_reported() {
        let (code, page) = (names(&["both", "code"]), names(&["both", "page"]));
        let found: Vec<_> = differences("event", &code, "docs/x.md", &page).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`code` is not documented"), "{found:?}");
        assert!(found[1].contains("there is no event `page`"), "{found:?}");
    }

    #[test]
    fn metric_in_a_query_without_a_definition_is_unknown() {
        let mut code = NamesInCode::default();
        code.add("crates/cli/src/x.rs", "\"rate_limit_latency\"");
        let found = metrics_in("rate(rate_limit_latency_bucket[5m]) / tidegate_none{job=\"tidegate\"}");
        let unknown: Vec<_> = found.iter().filter(|name| !code.knows_metric(name)).collect();
        assert_eq!(unknown, ["tidegate_none"]);
    }
}
