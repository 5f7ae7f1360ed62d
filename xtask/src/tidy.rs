//! `cargo xtask tidy`: checks those invariants of the architecture that text and metadata show.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::commands;
use crate::documented::NamesInCode;
use crate::run::{cargo, output, root};

/// A longer file contains two concepts.
const LONGEST_FILE: usize = 600;
/// Names without meaning.
const BANNED_NAMES: [&str; 7] = ["util", "utils", "misc", "common", "helpers", "types", "manager"];

/// The crates of the workspace on which each crate may depend. Every crate must be listed.
const MAY_USE: [(&str, &[&str]); 17] = [
    ("tidegate-core", &[]),
    ("tidegate-store", &["tidegate-core"]),
    ("tidegate-redis", &["tidegate-core", "tidegate-store"]),
    ("tidegate-headers", &["tidegate-core"]),
    ("tidegate-listener", &["tidegate-core"]),
    ("tidegate-policy", &["tidegate-core", "tidegate-headers"]),
    ("tidegate-telemetry", &["tidegate-core", "tidegate-store", "tidegate-policy"]),
    ("tidegate-limiter", &["tidegate-core", "tidegate-headers", "tidegate-store", "tidegate-policy"]),
    (
        "tidegate-tower",
        // The feature `policy` needs the limiter and the policy.
        &["tidegate-core", "tidegate-headers", "tidegate-store", "tidegate-policy", "tidegate-limiter"],
    ),
    ("tidegate-client", &["tidegate-core", "tidegate-headers", "tidegate-store", "tidegate-tower"]),
    (
        "tidegate-gateway",
        &[
            "tidegate-core",
            "tidegate-headers",
            "tidegate-store",
            "tidegate-policy",
            "tidegate-limiter",
            "tidegate-listener",
            "tidegate-telemetry",
            "tidegate-tower",
        ],
    ),
    (
        "tidegate-service",
        &[
            "tidegate-core",
            "tidegate-headers",
            "tidegate-store",
            "tidegate-policy",
            "tidegate-limiter",
            "tidegate-listener",
            "tidegate-telemetry",
            // It reads the deadlines of calls.
            "tidegate-tower",
        ],
    ),
    (
        "tidegate-admin",
        &[
            "tidegate-core",
            "tidegate-store",
            "tidegate-policy",
            "tidegate-limiter",
            "tidegate-listener",
            "tidegate-telemetry",
        ],
    ),
    (
        "tidegate",
        &[
            "tidegate-core",
            "tidegate-store",
            "tidegate-redis",
            "tidegate-policy",
            "tidegate-limiter",
            "tidegate-telemetry",
            "tidegate-listener",
            "tidegate-gateway",
            "tidegate-service",
            "tidegate-admin",
        ],
    ),
    (
        "bench",
        &[
            "tidegate-core",
            "tidegate-store",
            "tidegate-redis",
            "tidegate-policy",
            "tidegate-limiter",
            "tidegate-telemetry",
            "tidegate-tower",
            "tidegate-listener",
            "tidegate-gateway",
            "tidegate-testkit",
        ],
    ),
    // Only for tests: no crate lists it, and dev-dependencies are not checked.
    ("tidegate-testkit", &[]),
    ("xtask", &[]),
];

/// Crates that must not be among the normal dependencies of a crate, direct or not.
const MUST_NOT_CONTAIN: [(&str, &[&str]); 4] = [
    ("tidegate-headers", &["hyper", "tokio", "tidegate-policy", "tidegate-store"]),
    ("tidegate-store", &["hyper", "redb", "redis", "tokio"]),
    (
        "tidegate-tower",
        &["cel", "granit-parser", "hyper", "jsonwebtoken", "redb", "redis", "rustls", "tidegate-policy"],
    ),
    (
        "tidegate-limiter",
        &["h2", "hyper", "redb", "redis", "rustls", "tidegate-gateway", "tidegate-telemetry"],
    ),
];

/// Words that only some files may contain.
const ONLY_IN: [(&str, &[&str], &str); 10] = [
    ("std::env", &["crates/cli/"], "only cli reads the environment"),
    // Only cli depends on `tidegate_redis`.
    ("redis::", &["crates/redis/", "crates/cli/src/"], "only the redis crate knows Redis"),
    ("quanta::", &["crates/store/src/clock.rs"], "only store::clock reads time"),
    ("SystemTime", &["crates/store/src/clock.rs"], "only store::clock reads time"),
    (
        "MemoryStore",
        // The examples in the documentation of the limiter and of the layers need a store.
        &[
            "crates/store/",
            "crates/cli/src/serve/store.rs",
            "crates/limiter/src/lib.rs",
            "crates/tower/src/lib.rs",
            // A service without a policy selects its store itself: `RateLimiter::in_memory`.
            "crates/tower/src/rate_limit/",
            // Nodes that enforce a part of each limit keep its counters in memory.
            "crates/redis/",
        ],
        "only cli selects a concrete store",
    ),
    // The policy language names the styles of headers; health checks ask for a service of this name.
    (
        "\"ratelimit",
        &["crates/headers/", "crates/policy/src/language/", "crates/service/src/grpc/health.rs"],
        ONLY_HEADERS,
    ),
    ("\"x-ratelimit", &["crates/headers/"], ONLY_HEADERS),
    ("\"x-rate-limit", &["crates/headers/"], ONLY_HEADERS),
    ("violated-policies", &["crates/headers/"], ONLY_HEADERS),
    ("application/problem+json", &["crates/headers/"], ONLY_HEADERS),
];
const ONLY_HEADERS: &str = "only the headers crate writes rate-limit headers and error bodies";

/// Names that several visible types may share, and why.
const SHARED_TYPE_NAMES: [(&str, &str); 0] = [];

/// Words that no file may contain.
const NOWHERE: [(&str, &str); 3] = [
    ("::*;", "import and export names one by one"),
    ("allow(dead_code)", "delete unused code"),
    ("TODO", "do it now, or record it outside the code"),
];

pub(crate) fn run() -> anyhow::Result<()> {
    let mut problems =
        direction(&serde_json::from_str(&output(&mut cargo("metadata --no-deps --format-version 1"))?)?);
    for (name, forbidden) in MUST_NOT_CONTAIN {
        let tree = output(&mut cargo(&format!("tree -p {name} -e normal --prefix none --format {{p}}")))?;
        problems.extend(dependencies(name, forbidden, &tree));
    }
    let listed = output(
        std::process::Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root()),
    )?;
    let is_source =
        |path: &&str| Path::new(path).extension().is_some_and(|ending| ending == "rs" || ending == "lua");
    let sources = listed.lines().filter(is_source);
    let (mut count, mut types, mut names) = (0, VisibleTypes::new(), NamesInCode::default());
    for path in sources.filter(|path| root().join(path).exists()) {
        let text = fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))?;
        problems.extend(file(path, &text));
        if let Some(code) = product_code(path, &text) {
            add_visible_types(path, code, &mut types);
            names.add(path, code);
        }
        count += 1;
    }
    problems.extend(names.problems()?);
    problems.extend(commands::problems()?);
    problems.extend(duplicate_types(&types, &SHARED_TYPE_NAMES));
    if !problems.is_empty() {
        bail!("{} problems\n{}", problems.len(), problems.join("\n"));
    }
    println!("{count} files are tidy");
    Ok(())
}

/// Dependencies point one way.
fn direction(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name_of = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let ours: Vec<_> = packages.iter().map(name_of).collect();
    let mut problems = Vec::new();
    for package in packages {
        let name = name_of(package);
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("{name}: say in xtask/src/tidy.rs what this crate may build on"));
            continue;
        };
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        for dependency in dependencies.iter().filter(|dependency| dependency["kind"].is_null()) {
            let used = name_of(dependency);
            if ours.contains(&used) && !allowed.contains(&used.as_str()) {
                problems.push(format!("{name} must not depend on {used}: dependencies point one way"));
            }
        }
    }
    problems
}

/// The `forbidden` crates in the dependency `tree` of a crate: one package and its version on each line.
fn dependencies(name: &str, forbidden: &[&str], tree: &str) -> Vec<String> {
    let used = |forbidden: &&&str| tree.lines().any(|line| line.split(' ').next() == Some(**forbidden));
    let problem = |found: &&str| format!("{name} must not depend on {found}, directly or not");
    forbidden.iter().filter(used).map(problem).collect()
}

fn file(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        problems.push(format!("{path}: {lines} lines, at most {LONGEST_FILE}; split it by concept"));
    }
    let names = Path::new(path).with_extension("");
    let banned = names.iter().find(|part| BANNED_NAMES.iter().any(|banned| *part == *banned));
    if let Some(banned) = banned {
        problems.push(format!("{path}: `{}` has no meaning; name the content", banned.display()));
    }
    if path == "crates/core/src/lib.rs" && !text.contains("#![no_std]") {
        problems.push(format!("{path}: core is no_std, so that it cannot do I/O or read a clock"));
    }
    // This file names the words; tests and benches are not the product.
    if path.starts_with("xtask/") {
        return problems;
    }
    let product = is_product(path) && !is_test(path);
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{path}:{}", number + 1);
        for (word, allowed, why) in ONLY_IN {
            if product && line.contains(word) && !allowed.iter().any(|place| path.starts_with(place)) {
                problems.push(format!("{}: `{word}`: {why}", place()));
            }
        }
        for (word, why) in NOWHERE {
            if line.contains(word)
                && !line.trim_start().starts_with("use super::*")
                && !line.contains("prelude::*")
            {
                problems.push(format!("{}: `{word}`: {why}", place()));
            }
        }
    }
    problems
}

/// Where each visible struct, enum and trait is defined.
type VisibleTypes = BTreeMap<String, Vec<String>>;

/// Whether a file is product code. The test kit is not.
fn is_product(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !path.starts_with("crates/testkit/")
}

/// Whether a file is a test module.
fn is_test(path: &str) -> bool {
    Path::new(path).with_extension("").iter().any(|part| part == "tests" || part == "test")
}

/// The product code of a file. Test modules are no product: those in a file of their own, and those at the end of a file.
fn product_code<'a>(path: &str, text: &'a str) -> Option<&'a str> {
    if !is_product(path) || is_test(path) {
        return None;
    }
    let mut starts = text.match_indices("#[cfg(test)]\n").filter(|(start, marker)| {
        let next = text[start + marker.len()..].lines().next();
        let is_line = *start == 0 || text[..*start].ends_with('\n');
        is_line && next.is_some_and(|line| line.ends_with('{'))
    });
    Some(starts.next().map_or(text, |(start, _)| &text[..start]))
}

/// Adds the structs, enums and traits of product code that other modules can name.
fn add_visible_types(path: &str, code: &str, types: &mut VisibleTypes) {
    for (number, line) in code.lines().enumerate() {
        if let Some(name) = visible_type(line) {
            types.entry(name.to_owned()).or_default().push(format!("{path}:{}", number + 1));
        }
    }
}

/// The name of the `pub`, `pub(crate)`, `pub(super)` or `pub(in …)` struct, enum or trait that a line defines.
fn visible_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(restricted) => restricted.split_once(')')?.1,
        None => rest,
    };
    let rest = rest.strip_prefix(' ')?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|keyword| rest.strip_prefix(keyword))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// No two visible types share a name, unless `allowed` lists the name.
fn duplicate_types(types: &VisibleTypes, allowed: &[(&str, &str)]) -> Vec<String> {
    let is_allowed = |name: &str| allowed.iter().any(|(allowed, _)| *allowed == name);
    let shared = types.iter().filter(|(name, places)| places.len() > 1 && !is_allowed(name));
    shared
        .map(|(name, places)| {
            format!("`{name}` names several types, give each its subject: {}", places.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, uses: &[&str]) -> Value {
        let dependencies: Vec<_> = uses.iter().map(|used| json!({ "name": used, "kind": null })).collect();
        json!({ "name": name, "dependencies": dependencies })
    }

    #[test]
    fn dependency_against_the_direction_is_a_problem() {
        let packages =
            [package("tidegate-core", &["tidegate-store", "smallvec"]), package("tidegate-store", &[])];
        let problems = direction(&json!({ "packages": packages }));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("tidegate-core must not depend on tidegate-store"), "{problems:?}");
    }

    #[test]
    fn testkit_as_a_normal_dependency_is_a_problem() {
        let packages = [package("tidegate", &["tidegate-testkit"]), package("tidegate-testkit", &[])];
        assert_eq!(direction(&json!({ "packages": packages })).len(), 1);
    }

    #[test]
    fn unknown_crate_is_a_problem() {
        assert_eq!(direction(&json!({ "packages": [package("tidegate-common", &[])] })).len(), 1);
    }

    #[test]
    fn forbidden_dependency_at_any_depth_is_a_problem() {
        let tree = "tidegate-headers v0.1.0 (/crates/headers)\nhttp v1.5.0\ntokio-util v0.7.0\nhyper v1.12.0";
        let problems = dependencies("tidegate-headers", &["hyper", "tokio"], tree);
        assert_eq!(problems, ["tidegate-headers must not depend on hyper, directly or not"]);
    }

    #[test]
    fn long_file_bad_name_or_misplaced_word_is_a_problem() {
        let found = |path, text: &str| file(path, text).len();
        assert_eq!(found("crates/core/src/time.rs", "fine\n"), 0);
        assert_eq!(found("crates/core/src/time.rs", &"line\n".repeat(LONGEST_FILE + 1)), 1);
        assert_eq!(found("crates/core/src/utils/time.rs", ""), 1);
        assert_eq!(found("crates/core/src/types.rs", ""), 1);
        assert_eq!(found("crates/core/src/lib.rs", "//! has std"), 1);
        assert_eq!(found("crates/store/src/entry.rs", "let home = std::env::var(\"HOME\");"), 1);
        assert_eq!(found("crates/cli/src/main.rs", "let home = std::env::var(\"HOME\");"), 0);
        assert_eq!(found("crates/store/src/entry.rs", "pub use time::*;"), 1);
        assert_eq!(found("crates/store/src/entry.rs", "#[allow(dead_code)]"), 1);
        assert_eq!(found("crates/store/src/entry.rs", "SystemTime::UNIX_EPOCH"), 1);
        assert_eq!(found("crates/gateway/src/error.rs", r#"from_static("x-ratelimit-limit")"#), 1);
        assert_eq!(found("crates/headers/src/names.rs", r#"from_static("x-ratelimit-limit")"#), 0);
        assert_eq!(found("crates/gateway/src/error.rs", r#""violated-policies":[]"#), 1);
        assert_eq!(found("crates/policy/src/language/names.rs", r#"["ratelimit"]"#), 0);
    }

    fn duplicates(files: &[(&str, &str)]) -> Vec<String> {
        let mut types = VisibleTypes::new();
        for (path, text) in files {
            if let Some(code) = product_code(path, text) {
                add_visible_types(path, code, &mut types);
            }
        }
        duplicate_types(&types, &[("Allowed", "a reason")])
    }

    #[test]
    fn two_visible_types_with_one_name_are_reported_with_their_places() {
        let problems = duplicates(&[
            ("crates/a/src/x.rs", "pub struct Same<'a> {\n    pub(super) enum Other {"),
            ("crates/b/src/y.rs", "\npub(crate) enum Same {}\npub(in crate::b) trait Other: Sized {"),
        ]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[1].contains("`Same`"), "{problems:?}");
        assert!(problems[1].contains("crates/a/src/x.rs:1, crates/b/src/y.rs:2"), "{problems:?}");
    }

    #[test]
    fn private_associated_and_test_types_may_share_a_name() {
        let problems = duplicates(&[
            ("crates/a/src/x.rs", "pub struct Same;\n#[cfg(test)]\nmod tests {\n    pub struct Same;\n}"),
            ("crates/a/src/private.rs", "struct Same;\nimpl A for B {\n    type Same = u8;\n}"),
            ("crates/a/src/x/tests.rs", "pub(super) struct Same;"),
            ("crates/testkit/src/lib.rs", "pub struct Same;"),
            ("crates/a/tests/x.rs", "pub struct Same;"),
            ("crates/a/src/longer.rs", "pub struct SameButLonger;\npub fn same() {}\npub type Same = u8;"),
        ]);
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn allowed_type_name_may_be_shared() {
        let files =
            [("crates/a/src/x.rs", "pub enum Allowed {}"), ("crates/b/src/y.rs", "pub struct Allowed;")];
        assert_eq!(duplicates(&files), [""; 0]);
    }
}
