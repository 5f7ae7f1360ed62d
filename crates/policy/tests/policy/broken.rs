//! Invalid policies, each with a snapshot of all reported problems.
//!
//! Read a changed snapshot as an operator would: does it say what is wrong, where, and how to fix it?

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use tidegate_policy::{FileError, Files, MAX_FILE_SIZE, NoFiles, compile};

/// The files that the invalid policies refer to.
struct ReferencedFiles;

impl Files for ReferencedFiles {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        let contents: &[u8] = match name {
            "jwt.secret" => b"a secret of more than sixteen bytes\n",
            "short.secret" => b"hunter2\n",
            "jwks.json" => br#"{"keys": [{"kty": "RSA"}]}"#,
            "no-key.json" => br#"{"keys": [{"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"}]}"#,
            "good-keys.csv" => b"sk_1,free\n",
            "bad-keys.csv" => {
                b"key,tier\nsk_1,free\nsk_2,gold\nsk_3,Premium,acme\nsk_4\nsk_1,free\nfree,sk_5\n"
            }
            "bad-hashes.csv" => b"sk_1,free\nsha256:e3b0c442,free\n",
            "bad-bans.txt" => b"# harm\n10.0.0.0/8\n10.0.0/24\nexample.com # who\n10.0.0.0/99\n",
            "down.json" => b"{}",
            "not-json.json" => b"{ down }",
            "misspelt.json" => b"{\n  \"retry\": {{retry_afer}}\n}\n",
            "unquoted.json" => b"{ \"limit\": {{limit}}/{{window}} }",
            "unclosed.txt" => b"Retry after {{retry_after}",
            "rejected" => b"Too many requests.",
            "latin1.txt" => b"ferm\xe9",
            "large.html" => return Ok(Cow::Owned(vec![b' '; (1 << 20) + 1])),
            "locked.txt" => return Err(FileError::Unreadable { reason: "permission denied".to_owned() }),
            _ => return Err(FileError::Missing),
        };
        Ok(Cow::Borrowed(contents))
    }
}

#[test]
fn invalid_policies_report_what_where_and_how_to_fix_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../broken");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let _bound = settings.bind_to_scope();
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let file = format!("{name}.yaml");
        let problems = compile(&file, &fs::read(&path).unwrap(), &ReferencedFiles).expect_err(&file);
        assert!(problems.has_errors(), "{file}");
        for problem in &problems {
            assert!(
                problem.hint.is_some() || problem.expected.is_some(),
                "{file}: neither hint nor expectation\n{problem}"
            );
        }
        insta::assert_snapshot!(name, problems.to_string().trim_end());
        count += 1;
    }
    assert!(count >= 40, "{count} broken policies");
}

#[test]
fn file_larger_than_16_mib_is_rejected() {
    let large = vec![b'#'; MAX_FILE_SIZE + 1];
    let problems = compile("large.yaml", &large, &NoFiles).unwrap_err();
    assert_eq!(
        problems.to_string().trim_end(),
        "error: the file is larger than 16 MiB\n --> large.yaml\n = hint: check that this is the right file; \
         a policy of 10,000 rules takes about 1 MiB"
    );
}

#[test]
fn problems_beyond_the_maximum_are_only_counted() {
    let mut text = String::from("rate_limits:\n  endpoints:\n");
    for index in 0..5_000 {
        writeln!(text, "    /{index}: {{ requests: 0, window: 1s }}").unwrap();
    }
    let problems = compile("many.yaml", text.as_bytes(), &NoFiles).unwrap_err();
    assert_eq!(problems.count(), 5_000);
    assert_eq!(problems.iter().count() + problems.left_off(), 5_000);
    assert!(problems.to_string().ends_with("more\n\n"));
}

#[test]
fn problems_as_json_have_all_fields() {
    let problems =
        compile("p.yaml", b"rate_limits: { default: { requests: 0, window: 60 } }", &NoFiles).unwrap_err();
    let json = serde_json::to_value(&problems).unwrap();
    assert_eq!(
        json["problems"][0],
        serde_json::json!({
            "severity": "error",
            "file": "p.yaml",
            "line": 1,
            "column": 37,
            "path": "rate_limits.default.requests",
            "what": "`requests` must be at least 1",
            "expected": "a whole number of at least 1",
        })
    );
}
