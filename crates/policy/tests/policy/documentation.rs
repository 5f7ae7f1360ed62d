//! The policies that documentation pages show.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_policy::{FileError, Files, compile};

/// Pages in which every block of `yaml` is a whole policy.
const PAGES: [&str; 6] = [
    "algorithms.md",
    "deployment.md",
    "distributed.md",
    "headers.md",
    "integrations.md",
    "troubleshooting.md",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files that policies name are those of the examples. Of certificates only the form is checked.
struct ExampleFiles;

impl Files for ExampleFiles {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        if Path::new(name).extension().is_some_and(|ending| ending == "pem") {
            return Ok(Cow::Borrowed(b"-----BEGIN "));
        }
        let path = repository().join("examples").join(name);
        fs::read(path).map(Cow::Owned).map_err(|_| FileError::Missing)
    }
}

fn yaml_blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default()).collect()
}

/// The policy to which a block of docs/rules.md belongs. A list is the list of rules; identities need a definition.
fn complete(block: &str) -> String {
    let rules = if block.trim_start().starts_with("- ") { "rate_limits:\n  rules:\n" } else { "" };
    let clients = if block.contains("clients:") {
        ""
    } else {
        "clients: { user: { header: X-User }, ip: { trusted_proxies: [192.0.2.1] }, api_key: { verify: none } }\n"
    };
    [rules, block, clients].concat()
}

#[test]
fn rules_in_the_rules_page_compile() {
    let text = fs::read_to_string(repository().join("docs/rules.md")).unwrap();
    let blocks = yaml_blocks(&text);
    assert!(blocks.len() > 5, "docs/rules.md has {} policies", blocks.len());
    for block in blocks {
        let policy = complete(block);
        compile("rules.md", policy.as_bytes(), &ExampleFiles)
            .unwrap_or_else(|problems| panic!("{policy}\n{problems}"));
    }
}

#[test]
fn policies_in_documentation_pages_compile_without_warnings() {
    for page in PAGES {
        let text = fs::read_to_string(repository().join("docs").join(page)).unwrap();
        let blocks = yaml_blocks(&text);
        assert!(!blocks.is_empty(), "{page} has no policy");
        for block in blocks {
            let compiled = compile(page, block.as_bytes(), &ExampleFiles)
                .unwrap_or_else(|problems| panic!("{page}:\n{block}\n{problems}"));
            assert!(compiled.warnings.is_empty(), "{page}:\n{block}\n{}", compiled.warnings);
        }
    }
}
