//! `tidegate check` on real files.

use tidegate_testkit::folder::Folder;

use crate::program::run_in_root;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file in a folder of its own.
struct TempFile {
    folder: Folder,
    name: &'static str,
}

impl TempFile {
    fn new(name: &'static str, contents: &[u8]) -> Self {
        let folder = Folder::new();
        folder.write(name, contents);
        Self { folder, name }
    }

    fn path(&self) -> String {
        self.folder.text_path(self.name)
    }
}

#[test]
fn check_of_a_valid_policy_prints_its_rule_count() {
    let output = run_in_root(&["check", "examples/small-api.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "examples/small-api.yaml: valid, 3 rules\n");
}

#[test]
fn check_reads_files_relative_to_the_policy() {
    let output = run_in_root(&[
        "check",
        "examples/saas-tiers.yaml",
        "examples/multi-tenant.yaml",
        "examples/resilience.yaml",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert_eq!(text(&output.stdout).lines().count(), 3);
}

#[test]
fn check_names_files_as_seen_from_the_current_folder() {
    let policy = b"rate_limits: { default: { requests: 1, window: 1m }, tiers: { free: unlimited } }
clients: { tiers: { file: keys.csv }, exempt: { api_keys_file: missing.txt } }
";
    let file = TempFile::new("policy.yaml", policy);
    file.folder.write("keys.csv", b"k1,gold\n");
    let output = run_in_root(&["check", &file.path()]);
    let printed = text(&output.stdout);
    for name in ["keys.csv:1", "missing.txt"] {
        assert!(printed.contains(&file.folder.text_path(name)), "{name} is not named by its path: {printed}");
    }
}

#[test]
fn check_of_an_invalid_policy_fails_with_the_position() {
    let file = TempFile::new("broken.yaml", b"rate_limits:\n  default: { requests: 0, window: 60 }\n");
    let output = run_in_root(&["check", "examples/small-api.yaml", &file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout);
    assert!(printed.contains("broken.yaml:2:24\n"), "{printed}");
    assert!(printed.contains("examples/small-api.yaml: valid"), "{printed}");
    assert!(printed.ends_with("broken.yaml: 1 problem\n"), "{printed}");
}

#[test]
fn check_with_warnings_succeeds() {
    let file = TempFile::new(
        "doubtful.yaml",
        b"bans: { networks: 0.0.0.0/0 }\nrate_limits: { tenant: { requests: 5, window: 60 } }\n",
    );
    let output = run_in_root(&["check", &file.path()]);
    assert_eq!(output.status.code(), Some(0));
    let printed = text(&output.stdout);
    assert!(printed.starts_with("warning: `0.0.0.0/0` bans every client"), "{printed}");
    assert!(printed.ends_with("doubtful.yaml: valid, 1 rule, 1 warning\n"), "{printed}");
}

#[test]
fn check_with_json_format_prints_problems_and_rule_counts() {
    let file = TempFile::new("json.yaml", b"rate_limit: {}\n");
    let output = run_in_root(&["check", "--format", "json", &file.path(), "examples/small-api.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed[0]["ok"], false);
    assert_eq!(printed[0]["problems"][0]["path"], "rate_limit");
    assert_eq!(printed[0]["problems"][0]["hint"], "did you mean `rate_limits`?");
    assert_eq!((&printed[1]["ok"], &printed[1]["rules"]), (&true.into(), &3.into()));
}

#[test]
fn check_of_a_missing_file_fails_and_checks_the_others() {
    let output = run_in_root(&["check", "nowhere.yaml", "examples/small-api.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout);
    assert!(printed.starts_with("cannot read nowhere.yaml: no such file\n"), "{printed}");
    assert!(printed.contains("small-api.yaml: valid"), "{printed}");
}

#[test]
fn check_rejects_a_file_of_100_mib_without_reading_it() {
    let file = TempFile::new("large.yaml", b"");
    std::fs::File::options().write(true).open(file.path()).unwrap().set_len(100 << 20).unwrap();
    let output = run_in_root(&["check", &file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("larger than 16 MiB"), "{}", text(&output.stdout));
}

#[test]
fn check_without_a_file_is_a_usage_error() {
    assert_eq!(run_in_root(&["check"]).status.code(), Some(2));
}

#[test]
fn schema_is_json_and_completions_are_shell_scripts() {
    let schema: serde_json::Value = serde_json::from_slice(&run_in_root(&["schema"]).stdout).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&run_in_root(&["completions", shell]).stdout);
        assert!(script.contains("completions") && script.contains("check"), "{shell}");
    }
}
