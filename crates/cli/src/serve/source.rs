//! Where the policy comes from: a file, a line, or the demo.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tidegate_policy::{ActivePolicy, CompiledPolicy, FileError, Files, Problems, compile};

use super::demo;
use super::file_watcher::FileStamp;
use crate::args::ServeArgs;
use crate::file::{self, Folder};

/// A policy that can be read again.
#[derive(Debug)]
pub(crate) enum Source {
    File(PathBuf),
    /// Made from the command line, as the YAML it equals.
    Line(String),
    /// The built-in demo.
    Demo(String),
}

/// A policy as it was read.
pub(crate) struct Loaded {
    pub(crate) active: ActivePolicy,
    pub(crate) warnings: Problems,
}

/// Why a policy was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("cannot read {file}: {source}")]
    Unreadable { file: String, source: std::io::Error },
    #[error("{0}")]
    Problems(Problems),
    #[error(transparent)]
    Unservable(#[from] Unservable),
}

/// A good policy that cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unservable {
    #[error("the policy has no `routes`: nothing would be served; add `upstreams` and `routes`")]
    NoRoutes,
    #[error(
        "`store.url` names a shared store, which `serve` cannot use yet; remove it to count in this process"
    )]
    SharedStore,
}

impl Source {
    pub(crate) fn of(args: &ServeArgs) -> anyhow::Result<Self> {
        if let Some(path) = &args.config {
            return Ok(Self::File(path.clone()));
        }
        let limit = args.limit.as_deref();
        if let Some(upstream) = &args.upstream {
            return Ok(Self::Line(policy(upstream, limit.unwrap_or("100/m"))?));
        }
        let upstream = format!("http://{}", demo::start()?);
        Ok(Self::Demo(policy(&upstream, limit.unwrap_or("10/m"))?))
    }

    /// Reads the policy, and says which files that took, whether it is good or not.
    /// The file it is read from, if it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Line(_) | Self::Demo(_) => None,
        }
    }

    pub(crate) fn load(&self) -> (Result<Loaded, LoadError>, Vec<FileStamp>) {
        match self {
            Self::File(path) => {
                let name = path.display().to_string();
                let files = RecordingFiles {
                    folder: Folder::of(path),
                    read: RefCell::new(vec![FileStamp::now(path)]),
                    path,
                };
                let outcome = file::policy(path)
                    .map_err(|source| LoadError::Unreadable { file: name.clone(), source })
                    .and_then(|bytes| compile(&name, &bytes, &files).map_err(LoadError::Problems))
                    .and_then(loaded);
                (outcome, files.read.into_inner())
            }
            Self::Line(yaml) | Self::Demo(yaml) => {
                let compiled = compile("command line", yaml.as_bytes(), &tidegate_policy::NoFiles);
                (compiled.map_err(LoadError::Problems).and_then(loaded), Vec::new())
            }
        }
    }
}

fn loaded(CompiledPolicy { plan, warnings, .. }: CompiledPolicy) -> Result<Loaded, LoadError> {
    if plan.store.url.is_some() {
        return Err(Unservable::SharedStore.into());
    }
    if plan.routes.is_empty() {
        return Err(Unservable::NoRoutes.into());
    }
    Ok(Loaded { active: ActivePolicy::new(plan), warnings })
}

/// Files of a folder, noting which were asked for.
struct RecordingFiles<'a> {
    folder: Folder,
    path: &'a Path,
    read: RefCell<Vec<FileStamp>>,
}

impl Files for RecordingFiles<'_> {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        self.read.borrow_mut().push(FileStamp::now(&folder.join(name)));
        self.folder.read(name)
    }
}

/// `100/m` as a number of requests and a window.
pub(crate) fn parts_of_limit(limit: &str) -> anyhow::Result<(u64, String)> {
    let (requests, window) = limit
        .split_once('/')
        .with_context(|| format!("`{limit}` is no limit; write it as 100/m, 10/s or 1000/15m"))?;
    let Ok(requests) = requests.trim().parse::<u64>() else {
        bail!("`{requests}` is no number of requests; write the limit as 100/m, 10/s or 1000/15m");
    };
    let window = window.trim();
    let has_number = window.starts_with(|c: char| c.is_ascii_digit());
    Ok((requests, if has_number { window.to_owned() } else { format!("1{window}") }))
}

/// One limit for each client address in front of one upstream, as it would be written in a file.
fn policy(upstream: &str, limit: &str) -> anyhow::Result<String> {
    let (requests, window) = parts_of_limit(limit)?;
    Ok(format!(
        "\
upstreams:
  api: {{ servers: [{upstream}] }}
routes:
  - {{ path: /**, upstream: api }}
clients:
  identify_by: [ip]
rate_limits:
  default: {{ requests: {requests}, window: {window}, algorithm: token_bucket }}
"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_policy() {
        for limit in ["100/m", "10/s", "1000/15m", "5 / 1d"] {
            let yaml = policy("http://localhost:3000", limit).unwrap();
            let compiled = compile("line", yaml.as_bytes(), &tidegate_policy::NoFiles);
            assert!(compiled.is_ok_and(|compiled| compiled.warnings.is_empty()), "{yaml}");
        }
        for bad in ["100", "many/m", "-1/m"] {
            let error = policy("http://localhost:3000", bad).unwrap_err().to_string();
            assert!(error.contains("100/m"), "{error}");
        }
    }
}
