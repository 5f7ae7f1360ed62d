//! The configuration of Envoy's reference rate limit server: a folder of YAML files (`--envoy-config`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::bail;
use serde::Serialize;
use tidegate_policy::{DescriptorLimit, EnvoyDomain, EnvoyFile, EnvoyLimits, Plan, Problems};
use tidegate_service::Service;
use tidegate_store::StoreError;
use tidegate_telemetry::details;

use super::file_watcher::FileStamp;
use super::reload::problem_texts;
use super::store::SelectedStore;
use crate::file;
use crate::print::write_stderr;

/// The deepest folder that is read, counted from the one that is configured.
const MAX_DEPTH: usize = 8;
/// The largest number of files.
const MAX_FILES: usize = 10_000;
/// The warning about a policy that has no limits.
const NO_LIMITS: &str = "the policy has no limits";
/// A name that no file has. Watching it means watching its folder for new files.
const NEW_FILE: &str = ".new-file";

/// The folder of a configuration.
#[derive(Debug)]
pub(crate) struct EnvoyConfig {
    folder: PathBuf,
    /// The domains of the active configuration.
    active: Mutex<Vec<DomainReport>>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvoyConfigError {
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
    #[error("{folder} contains no files that end with .yaml or .yml")]
    NoFiles { folder: String },
    #[error("{folder} contains more than {MAX_FILES} files or folders deeper than {MAX_DEPTH}")]
    TooManyFiles { folder: String },
    #[error("{0}")]
    Problems(Problems),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The warnings of a policy that matter. With an Envoy configuration, the limits are there.
pub(crate) fn relevant_warnings(has_envoy_config: bool, warnings: Problems) -> Problems {
    if !has_envoy_config || warnings.left_off() > 0 {
        return warnings;
    }
    let mut relevant = Problems::default();
    relevant.extend(warnings.iter().filter(|problem| problem.what != NO_LIMITS).cloned());
    relevant
}

impl EnvoyConfig {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), active: Mutex::default() }
    }

    /// The domains of the active configuration.
    pub(crate) fn domains(&self) -> Vec<DomainReport> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn apply(&self, service: &Service<SelectedStore>, limits: EnvoyLimits) -> Result<(), StoreError> {
        let domains = domains(&limits);
        service.apply_envoy_limits(limits)?;
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = domains;
        Ok(())
    }

    /// Loads the configuration at the start of the process. Returns the files to watch.
    pub(crate) fn start(
        &self,
        service: &Service<SelectedStore>,
        plan: &Plan,
    ) -> anyhow::Result<Vec<FileStamp>> {
        if plan.service.grpc.is_none() && plan.service.http.is_none() {
            bail!(
                "--envoy-config needs a listener; add `service: {{ grpc: 127.0.0.1:8081 }}` to the policy, or --grpc"
            );
        }
        let mut files = Vec::new();
        let applied = self.compile(&mut files).and_then(|limits| {
            self.warn(&limits);
            Ok(self.apply(service, limits)?)
        });
        match applied {
            Ok(()) => Ok(files),
            Err(EnvoyConfigError::Problems(problems)) => {
                write_stderr(problems);
                bail!("{}: invalid configuration; fix the problems listed above", self.folder.display());
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the configuration without using it.
    pub(crate) fn check(&self) -> Result<EnvoyLimits, EnvoyConfigError> {
        self.compile(&mut Vec::new())
    }

    /// Logs a warning about a configuration without limits.
    fn warn(&self, limits: &EnvoyLimits) {
        if limits.iter().next().is_none() {
            let folder = self.folder.display();
            tracing::warn!(event = "policy_warnings", "the configuration in {folder} has no limits");
        }
    }

    /// Loads the configuration again, and logs problems. Changes nothing. Returns the problems, and the files to watch.
    pub(crate) fn load(&self) -> (Result<EnvoyLimits, String>, Vec<FileStamp>) {
        let mut files = Vec::new();
        (self.compile(&mut files).map_err(|error| self.log_failure(&error)), files)
    }

    /// Activates a loaded configuration and logs the result. Returns the problem if the store cannot count its limits.
    pub(crate) fn activate(
        &self,
        service: &Service<SelectedStore>,
        limits: EnvoyLimits,
    ) -> Result<(), String> {
        self.warn(&limits);
        self.apply(service, limits).map_err(|error| self.log_failure(&error.into()))?;
        tracing::info!(event = "reloaded", "{} reloaded", self.folder.display());
        Ok(())
    }

    fn log_failure(&self, error: &EnvoyConfigError) -> String {
        let texts = match error {
            EnvoyConfigError::Problems(problems) => problem_texts(problems),
            error => vec![error.to_string()],
        };
        tracing::error!(
            event = "reload_failed",
            details = details(&texts),
            "reload failed: invalid configuration in {}; the running one stays active",
            self.folder.display()
        );
        texts.join("\n\n")
    }

    fn compile(&self, stamps: &mut Vec<FileStamp>) -> Result<EnvoyLimits, EnvoyConfigError> {
        EnvoyLimits::compile(&self.read(stamps)?).map_err(EnvoyConfigError::Problems)
    }

    /// Reads all files, in the order of their names. Names that start with a dot are skipped: Kubernetes keeps copies of
    /// mounted files in such folders.
    fn read(&self, stamps: &mut Vec<FileStamp>) -> Result<Vec<EnvoyFile>, EnvoyConfigError> {
        let unreadable = |file: &Path, error: &std::io::Error| EnvoyConfigError::Unreadable {
            file: file.display().to_string(),
            reason: file::describe_io_error(error),
        };
        let folder = || self.folder.display().to_string();
        let mut files = Vec::new();
        let mut folders = vec![(self.folder.clone(), 0)];
        while let Some((folder_path, depth)) = folders.pop() {
            stamps.push(FileStamp::now(&folder_path));
            stamps.push(FileStamp::now(&folder_path.join(NEW_FILE)));
            let entries = fs::read_dir(&folder_path).map_err(|error| unreadable(&folder_path, &error))?;
            for entry in entries {
                let path = entry.map_err(|error| unreadable(&folder_path, &error))?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.starts_with('.') {
                    continue;
                }
                if path.is_dir() {
                    folders.push((path.clone(), depth + 1));
                } else if name.ends_with(".yaml") || name.ends_with(".yml") {
                    files.push(path.clone());
                }
                if files.len() > MAX_FILES || depth >= MAX_DEPTH {
                    return Err(EnvoyConfigError::TooManyFiles { folder: folder() });
                }
            }
        }
        if files.is_empty() {
            return Err(EnvoyConfigError::NoFiles { folder: folder() });
        }
        files.sort();
        let read = |path: PathBuf| {
            stamps.push(FileStamp::now(&path));
            let bytes = file::read_policy(&path).map_err(|error| unreadable(&path, &error))?;
            Ok(EnvoyFile { name: path.display().to_string(), bytes })
        };
        files.into_iter().map(read).collect()
    }
}

/// A domain of an Envoy configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DomainReport {
    pub(crate) domain: String,
    /// Its limits, by descriptor.
    pub(crate) limits: Vec<DescriptorReport>,
}

/// A descriptor that has a limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DescriptorReport {
    /// Its keys and values.
    pub(crate) descriptor: String,
    /// Its limit, such as `10 per minute`.
    pub(crate) limit: String,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
}

impl DomainReport {
    fn new((name, domain): (&str, &EnvoyDomain)) -> Self {
        let mut limits: Vec<_> = domain.limits().map(DescriptorReport::new).collect();
        limits.sort_unstable_by(|one, other| one.descriptor.cmp(&other.descriptor));
        Self { domain: name.to_owned(), limits }
    }
}

impl DescriptorReport {
    fn new(limit: &DescriptorLimit) -> Self {
        let rate = limit.rate.map_or_else(|| "unlimited".to_owned(), |rate| rate.to_string());
        let (shadow_mode, quota_mode) = (limit.is_shadow, limit.is_quota);
        Self { descriptor: limit.path().to_owned(), limit: rate, shadow_mode, quota_mode }
    }
}

/// The domains of a configuration, in the order of their names.
pub(crate) fn domains(limits: &EnvoyLimits) -> Vec<DomainReport> {
    limits.iter_domains().map(DomainReport::new).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_policy::{NoFiles, compile};

    use super::*;

    #[test]
    fn policy_without_limits_is_not_warned_about_if_an_envoy_configuration_has_them() {
        let policy = "service: { grpc: '127.0.0.1:8081' }\n";
        let warnings = |policy: &str| compile("policy.yaml", policy.as_bytes(), &NoFiles).unwrap().warnings;
        let texts =
            |problems: Problems| problems.iter().map(|problem| problem.what.clone()).collect::<Vec<_>>();
        assert_eq!(texts(relevant_warnings(false, warnings(policy))), [NO_LIMITS]);
        assert_eq!(texts(relevant_warnings(true, warnings(policy))), Vec::<String>::new());
        let other = format!("{policy}bans: {{ networks: ['0.0.0.0/0'] }}\n");
        assert_eq!(relevant_warnings(true, warnings(&other)).count(), 1, "other warnings stay");
    }
}
