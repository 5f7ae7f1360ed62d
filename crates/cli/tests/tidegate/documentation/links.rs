//! Links between files of the repository, and to their headings.

use std::path::{Component, Path, PathBuf};

use super::{pages, read};
use crate::program::ROOT;

/// The targets of the links of a page, without those to other sites.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(' '))
}

/// The name by which links refer to a heading: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_heading(page: &str, name: &str) -> bool {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).any(|found| found == name)
}

/// Removes `..` from a path within the repository.
fn normalise(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            result.pop();
        } else {
            result.push(part);
        }
    }
    result
}

#[test]
fn links_in_documentation_lead_to_existing_files_and_headings() {
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    for file in names.into_iter().map(str::to_owned).chain(pages::all()) {
        let page = read(&file);
        for link in links(&page) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                PathBuf::from(&file)
            } else {
                normalise(&Path::new(&file).with_file_name("").join(path))
            };
            assert!(Path::new(ROOT).join(&target).exists(), "{file}: {link} does not exist");
            if !heading.is_empty() {
                assert!(
                    has_heading(&read(&target.to_string_lossy()), heading),
                    "{file}: {link} has no heading"
                );
            }
        }
    }
}

#[test]
fn all_pages_are_in_the_index() {
    let index = read("docs/README.md");
    for page in pages::all().iter().filter(|page| *page != "docs/README.md") {
        let name = page.trim_start_matches("docs/");
        assert!(index.contains(&format!("]({name}")), "docs/README.md does not list {name}");
    }
}
