//! Runs the fuzzing properties on the stored corpus.

#[path = "../../../../fuzz/laws/path.rs"]
mod path;
#[path = "../../../../fuzz/laws/policy.rs"]
mod policy;

use std::fs;
use std::path::Path;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let files: Vec<_> = files.collect();
    assert!(files.len() > 100, "{} files", files.len());
    files
}

#[test]
fn corpus_paths_are_normalised_or_rejected() {
    for text in corpus("path").into_iter().filter_map(|bytes| String::from_utf8(bytes).ok()) {
        path::assert_law(&text);
    }
}

#[test]
fn corpus_policies_compile_or_report_problems() {
    for bytes in corpus("policy") {
        policy::assert_law(&bytes);
    }
}
