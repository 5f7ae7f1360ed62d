//! Reads a directory from a CSV or YAML file.

use crate::directory::form::KeyForm;
use crate::directory::{Directory, DirectoryBuilder, LineError};
use crate::problem::Problems;
use crate::raw::{self, Finding, ProblemReport, YamlValue};

/// Reads the directory in `file`: YAML if its name ends with `.yaml` or `.yml`, otherwise CSV.
pub(crate) fn read(file: &str, bytes: &[u8], tiers: &[&str]) -> Result<Directory, Problems> {
    let is_yaml = file
        .rsplit_once('.')
        .is_some_and(|(_, end)| end.eq_ignore_ascii_case("yaml") || end.eq_ignore_ascii_case("yml"));
    if is_yaml {
        return from_yaml(file, bytes, tiers);
    }
    Directory::from_csv(bytes, tiers).map_err(|error| error.into_problems(file))
}

/// A mapping from API keys to tiers, or to `{ tier: …, tenant: … }`.
fn from_yaml(file: &str, bytes: &[u8], tiers: &[&str]) -> Result<Directory, Problems> {
    // Without the text, because a problem must not show a line that contains a key.
    let mut report = ProblemReport::new(file, "");
    let hint = "for example `sk_live_51H: premium` or `sk_live_51H: { tier: premium, tenant: acme }`";
    let Ok(text) = std::str::from_utf8(bytes) else {
        report.push(
            Finding::error_at(raw::SourcePosition::default(), "the file is not valid UTF-8").hint(hint),
        );
        return Err(report.finish(None));
    };
    let root = raw::parse(text, &mut report);
    let entries = match root.as_ref().map(|root| (&root.value, root.is_null())) {
        Some((YamlValue::Mapping(entries), _)) => entries.as_slice(),
        Some((_, true)) | None => &[],
        Some(_) => {
            let what = "the file must be a mapping from API keys to tiers";
            report.push(Finding::error_at(raw::SourcePosition::default(), what).hint(hint));
            &[]
        }
    };
    if report.failed() {
        return Err(report.finish(None));
    }
    let form = KeyForm::of_list(entries.iter().map(|entry| entry.key.text.as_bytes()));
    let mut builder = DirectoryBuilder::new(tiers, form);
    for entry in entries {
        let line = u64::from(entry.key.position.line);
        let added = fields(&entry.value).and_then(|(tier, tenant)| {
            let mut record = csv::ByteRecord::from(vec![entry.key.text.as_bytes(), tier.as_bytes()]);
            if let Some(tenant) = tenant {
                record.push_field(tenant.as_bytes());
            }
            builder.add(&record, line)
        });
        if let Err(cause) = added {
            builder.problems.add_problem(line, cause);
        }
    }
    builder.finish().map_err(|error| error.into_problems(file))
}

/// Returns the tier and the tenant of a key.
fn fields<'n>(node: &'n raw::YamlNode<'_>) -> Result<(&'n str, Option<&'n str>), LineError> {
    let scalar = |value: &'n YamlValue<'_>| match value {
        YamlValue::Scalar { text, .. } => Some(text.as_ref()),
        _ => None,
    };
    match &node.value {
        YamlValue::Mapping(entries) => {
            let named = |name: &str| {
                entries
                    .iter()
                    .find(|entry| entry.key.text == name)
                    .and_then(|entry| scalar(&entry.value.value))
            };
            let (tier, tenant) = (named("tier"), named("tenant"));
            let known = usize::from(tier.is_some()) + usize::from(tenant.is_some());
            match tier {
                Some(tier) if known == entries.len() => Ok((tier, tenant)),
                _ => Err(LineError::Fields { found: entries.len() + 1 }),
            }
        }
        value => scalar(value).map(|tier| (tier, None)).ok_or(LineError::Fields { found: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [&str; 2] = ["free", "premium"];

    #[test]
    fn yaml_and_csv_with_same_keys_give_equal_directories() {
        let yaml = b"sk_1: premium\nsk_2: { tier: free, tenant: acme }\n";
        let yaml = read("keys.yaml", yaml, &TIERS).unwrap();
        let csv = read("keys.csv", b"sk_1,premium\nsk_2,free,acme\n", &TIERS).unwrap();
        for key in [&b"sk_1"[..], b"sk_2", b"sk_3"] {
            assert_eq!(yaml.get(key), csv.get(key));
        }
        assert_eq!(yaml.get(b"sk_2").unwrap().tenant, Some("acme"));
        assert!(read("keys.yml", b"", &TIERS).unwrap().is_empty());
    }

    #[test]
    fn hashed_keys_are_found_by_their_key_and_not_by_their_hash() {
        let hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let csv = format!("key,tier\n{hash},premium,acme\nsk_1,free\n");
        let yaml =
            format!("\"sha\\u0032\\u00356{}\": {{ tier: premium, tenant: acme }}\nsk_1: free\n", &hash[6..]);
        for (file, text) in [("keys.csv", &csv), ("keys.yaml", &yaml)] {
            let directory = read(file, text.as_bytes(), &TIERS).unwrap();
            assert_eq!(directory.get(b"abc").unwrap().tenant, Some("acme"), "{file}");
            assert_eq!(directory.get(b"sk_1").unwrap().tier, "free");
            let digest = KeyForm::Hashed.sent(b"abc");
            assert_eq!((directory.get(hash.as_bytes()), directory.get(digest.as_bytes())), (None, None));
        }
        // In both forms, and in two cases.
        for other in ["abc".to_owned(), hash.to_uppercase()] {
            let error =
                read("keys.csv", format!("{hash},free\n{other},premium\n").as_bytes(), &TIERS).unwrap_err();
            assert!(error.to_string().contains("duplicate key"), "{error}");
        }
        let error = read("keys.csv", format!("{},free\n", &hash[..60]).as_bytes(), &TIERS).unwrap_err();
        assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
        assert!(!error.to_string().contains("ba7816"), "{error}");
    }

    #[test]
    fn list_whose_keys_are_hashed_loses_none() {
        let plain = read("keys.csv", b"abc,free\nb,free\nc,free\n", &TIERS).unwrap();
        let hashed = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad,free\n";
        let with = |rest: &str| read("keys.csv", format!("{hashed}{rest}").as_bytes(), &TIERS).unwrap();
        assert_eq!(plain.count_missing_in(&with("b,free\nc,free\n")), 0);
        assert_eq!(plain.count_missing_in(&with("")), 2);
        assert_eq!(with("b,free\n").count_missing_in(&with("c,free\n")), 1);
    }

    #[test]
    fn yaml_invalid_entries_are_reported_by_line_without_keys() {
        let text = b"sk_secret_1: gold\nsk_secret_2: { tier: free, colour: red }\nsk_secret_3: [free]\n";
        let problems = read("keys.yaml", text, &TIERS).unwrap_err();
        let lines: Vec<_> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [1, 2, 3]);
        assert!(!problems.to_string().contains("secret"), "{problems}");
        let broken = read("keys.yaml", b"sk_secret: [free\nsk_secret_2: }", &TIERS).unwrap_err();
        assert!(!broken.to_string().contains("secret"), "{broken}");
        assert!(read("keys.yaml", b"- sk_secret", &TIERS).is_err());
    }
}
