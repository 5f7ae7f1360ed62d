//! The recorded ratios, for each kind of processor: `bench-peers/baseline.json`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::run;

/// Relative to the root.
pub(crate) const FILE: &str = "bench-peers/baseline.json";

/// The file: processors, their rows, and for each row the ratio and where it comes from.
#[derive(Debug, Default)]
pub(crate) struct Baseline(Map<String, Value>);

/// The ratios of a row's runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    pub(crate) ratio: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Baseline {
    /// Without a file, nothing is recorded.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let path = run::root().join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("{FILE} is damaged")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {FILE}")),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(Self(serde_json::from_str(text)?))
    }

    fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(&self.0)? + "\n")
    }

    pub(crate) fn save(&self) -> anyhow::Result<()> {
        fs::write(run::root().join(FILE), self.text()?).with_context(|| format!("cannot write {FILE}"))
    }

    pub(crate) fn processors(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    pub(crate) fn ratio(&self, processor: &str, row: &str) -> Option<f64> {
        self.0.get(processor)?.get(row)?["ratio"].as_f64()
    }

    /// The commit and the date of a recorded ratio.
    pub(crate) fn origin(&self, processor: &str, row: &str) -> Option<(&str, &str)> {
        let row = self.0.get(processor)?.get(row)?;
        Some((row["commit"].as_str()?, row["date"].as_str()?))
    }

    /// Replaces a row. `commit` and `date` say what was measured, and when.
    pub(crate) fn record(
        &mut self,
        processor: &str,
        row: &str,
        recorded: Recorded,
        (commit, date): (&str, &str),
    ) {
        let Recorded { ratio, lowest, highest } = recorded;
        let entry = json!({
            "ratio": rounded(ratio),
            "lowest": rounded(lowest),
            "highest": rounded(highest),
            "commit": commit,
            "date": date,
        });
        let rows = self.0.entry(processor).or_insert_with(|| Value::Object(Map::new()));
        rows[row] = entry;
    }

    /// Removes the rows of a processor that no longer exist.
    pub(crate) fn retain(&mut self, processor: &str, rows: &[String]) {
        if let Some(recorded) = self.0.get_mut(processor).and_then(Value::as_object_mut) {
            recorded.retain(|name, _| rows.contains(name));
        }
    }
}

/// Four digits: more are noise.
fn rounded(ratio: f64) -> f64 {
    format!("{ratio:.3e}").parse().unwrap_or(ratio)
}

/// The commit of the work tree, and today.
pub(crate) fn origin() -> anyhow::Result<(String, String)> {
    let git = |arguments: &[&str]| run::output(Command::new("git").args(arguments).current_dir(run::root()));
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    // Recording some rows first does not change what is measured.
    let exclude_file = format!(":!{FILE}");
    let changes = git(&["status", "--porcelain", "--", ".", &exclude_file])?;
    let mark = if changes.is_empty() { "" } else { ", changed" };
    let date = run::output(Command::new("date").args(["--utc", "+%F"]))?;
    Ok((format!("{}{mark}", commit.trim()), date.trim().to_owned()))
}

/// The kind of this machine's processor.
pub(crate) fn processor() -> anyhow::Result<String> {
    let text = fs::read_to_string(Path::new("/proc/cpuinfo")).context("the guard needs Linux")?;
    kind(&text).context("/proc/cpuinfo does not name the processor")
}

/// Vendor, family, model and name, of the first processor; on ARM, which has no names, implementer and part.
fn kind(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    if let Some(vendor) = field("vendor_id") {
        let (family, model, name) = (field("cpu family")?, field("model")?, field("model name")?);
        return Some(format!("{vendor} family {family} model {model}, {name}"));
    }
    Some(format!("implementer {} part {}", field("CPU implementer")?, field("CPU part")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: Recorded = Recorded { ratio: 0.123_456, lowest: 0.12, highest: 0.13 };

    #[test]
    fn recorded_row_is_found_after_writing_and_reading_for_its_processor_only() {
        let mut baseline = Baseline::default();
        baseline.record("cpu", "decide × other", RECORDED, ("abc", "2026-01-02"));
        let baseline = Baseline::parse(&baseline.text().unwrap()).unwrap();
        assert_eq!(baseline.ratio("cpu", "decide × other"), Some(0.1235));
        assert_eq!(baseline.origin("cpu", "decide × other"), Some(("abc", "2026-01-02")));
        assert_eq!(baseline.ratio("cpu", "other"), None);
        assert_eq!(baseline.ratio("other", "decide × other"), None);
        assert_eq!(baseline.processors(), ["cpu"]);
    }

    #[test]
    fn new_record_replaces_the_row_and_keeps_others() {
        let mut baseline = Baseline::default();
        baseline.record("cpu", "first", RECORDED, ("abc", "2026-01-02"));
        baseline.record("cpu", "second", RECORDED, ("abc", "2026-01-02"));
        baseline.record("cpu", "first", Recorded { ratio: 2.0, ..RECORDED }, ("def", "2026-01-03"));
        assert_eq!(baseline.ratio("cpu", "first"), Some(2.0));
        assert_eq!(baseline.ratio("cpu", "second"), Some(0.1235));
        baseline.retain("cpu", &["first".to_owned()]);
        assert_eq!(baseline.ratio("cpu", "second"), None);
    }

    #[test]
    fn processor_is_named_by_vendor_family_model_and_name() {
        let amd = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\
                   \nprocessor\t: 1\nvendor_id\t: Other\n";
        assert_eq!(kind(amd).as_deref(), Some("AuthenticAMD family 26 model 2, AMD EPYC"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(kind(arm).as_deref(), Some("implementer 0x41 part 0xd0c"));
        assert_eq!(kind("processor: 0"), None);
    }
}
