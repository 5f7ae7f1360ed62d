//! Decodes `store.url`. Only its form is checked here; the connection to the store is made elsewhere.

use crate::compile::scalar;
use crate::plan::StoreUrl;
use crate::raw::{Finding, ProblemReport, YamlNode, nearest};
use crate::render::quote;

const EXPECTED: &str = "`memory`, or a URL with redis://, redis-sentinel:// or redis-cluster://; with TLS rediss instead of redis";

/// How the servers of a URL are arranged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    Single,
    Sentinel,
    Cluster,
}

/// The schemes: `redis`, `rediss`, `valkey`, `valkeys`, alone or with `-sentinel` or `-cluster`.
fn scheme_kind(scheme: &str) -> Option<UrlKind> {
    let (base, kind) = scheme.split_once('-').unwrap_or((scheme, ""));
    if !["redis", "rediss", "valkey", "valkeys"].contains(&base) {
        return None;
    }
    match kind {
        "" => Some(UrlKind::Single),
        "sentinel" => Some(UrlKind::Sentinel),
        "cluster" => Some(UrlKind::Cluster),
        _ => None,
    }
}

/// Decodes the URL; `None` if it is `memory` or invalid.
pub(super) fn store_url(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<StoreUrl> {
    let text = scalar::text(node, "`memory`, or a URL, for example `redis://127.0.0.1:6379`", report)?;
    if text == "memory" {
        return None;
    }
    match check(text) {
        Ok(()) => Some(StoreUrl::new(text)),
        Err((what, hint)) => {
            report.push(Finding::error(node, what).expected(EXPECTED).hint(hint));
            None
        }
    }
}

/// Checks the form of a URL. Returns what is wrong and how to fix it; neither contains the password.
fn check(text: &str) -> Result<(), (String, String)> {
    let wrong = |what: &str, hint: &str| Err((format!("invalid store URL: {what}"), hint.to_owned()));
    let Some((scheme, rest)) = text.split_once("://") else {
        return wrong("it has no scheme", "for example `redis://127.0.0.1:6379`");
    };
    let Some(kind) = scheme_kind(scheme) else {
        let near = nearest(scheme, ["redis", "rediss", "valkey", "redis-sentinel", "redis-cluster"]);
        let hint = match near {
            Some(near) => format!("did you mean `{near}://`?"),
            None => "for example `redis://127.0.0.1:6379`".to_owned(),
        };
        return Err((format!("invalid store URL: unknown scheme {}", quote(scheme)), hint));
    };
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
    let hosts: Vec<_> = hosts.split(',').collect();
    if let Some(bad) = hosts.iter().find(|host| !is_address(host)) {
        let what = if bad.is_empty() {
            "a host is missing".to_owned()
        } else {
            format!("{} is not a host and port", quote(bad))
        };
        return wrong(&what, "for example `redis://127.0.0.1:6379`; encode special characters of a password");
    }
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (has_service, database) = match (kind, parts.as_slice()) {
        (UrlKind::Sentinel, [_service]) => (true, None),
        (UrlKind::Sentinel, [_service, database]) => (true, Some(*database)),
        (UrlKind::Single | UrlKind::Cluster, []) => (true, None),
        (UrlKind::Single, [database]) => (true, Some(*database)),
        (UrlKind::Cluster, [database]) => (*database == "0", None),
        (UrlKind::Sentinel, []) => (false, None),
        _ => return wrong("the path is too long", "for example `redis://127.0.0.1:6379/0`"),
    };
    if let Some(database) = database.filter(|database| database.parse::<u32>().is_err()) {
        let what = format!("{} is not the number of a database", quote(database));
        return wrong(&what, "for example `redis://127.0.0.1:6379/0`");
    }
    match (kind, hosts.len(), has_service) {
        (UrlKind::Sentinel, _, false) => wrong(
            "the name of the service is missing",
            "for example `redis-sentinel://host1,host2,host3/mymaster`",
        ),
        (UrlKind::Cluster, _, false) => wrong("a cluster has only database 0", "remove the path"),
        (UrlKind::Single, 2.., _) => wrong(
            "several hosts need Sentinel or a cluster",
            "write `redis-sentinel://host1,host2/service` or `redis-cluster://host1,host2`",
        ),
        _ => Ok(()),
    }
}

/// A host, or an IPv6 address in brackets, with an optional port.
fn is_address(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(""))),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    !host.is_empty() && !host.contains(char::is_whitespace) && port.is_none_or(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_url_of_every_scheme_is_accepted() {
        for base in ["redis", "rediss", "valkey", "valkeys"] {
            for rest in
                ["://a", "://:p%40ss@a:6380/2", "://[::1]:7000", "-sentinel://a,b/main/1", "-cluster://a,b:1"]
            {
                assert_eq!(check(&format!("{base}{rest}")), Ok(()), "{base}{rest}");
            }
        }
    }

    #[test]
    fn store_url_invalid_says_why_without_the_password() {
        for (url, reason) in [
            ("localhost:6379", "no scheme"),
            ("redi://a", "unknown scheme `redi`"),
            ("redis-ring://a", "unknown scheme `redis-ring`"),
            ("redis://", "a host is missing"),
            ("redis://:hunter2@a:0", "`a:0` is not a host and port"),
            ("redis://a,b", "several hosts"),
            ("redis://a/x", "not the number of a database"),
            ("redis-sentinel://a", "name of the service"),
            ("redis-cluster://a/1", "only database 0"),
            ("redis://a/1/2", "too long"),
        ] {
            let (what, _) = check(url).unwrap_err();
            assert!(what.contains(reason) && !what.contains("hunter2"), "{url}: {what}");
        }
    }
    #[test]
    fn cluster_url_that_braces_cut_at_a_comma_gets_a_hint() {
        let problems = |store: &str| {
            let text = format!("store: {store}\nrate_limits: {{ default: {{ requests: 1, window: 1s }} }}\n");
            crate::compile("p.yaml", text.as_bytes(), &crate::NoFiles).err().map(|found| found.to_string())
        };
        let cut = problems("{ url: redis-cluster://host1,host2 }").unwrap();
        assert!(cut.contains("url: 'redis-cluster://host1,host2'"), "{cut}");
        assert_eq!(problems("{ url: 'redis-cluster://host1,host2' }"), None);
    }
}
