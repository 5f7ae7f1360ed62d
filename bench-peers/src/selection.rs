//! Which works and contenders a run measures.

use anyhow::ensure;

use crate::arguments::{Options, PeerFilter};

impl Options {
    /// Whether a work is measured.
    pub(crate) fn includes(&self, work: &str) -> bool {
        if self.exact { work == self.only } else { work.contains(&self.only) }
    }

    /// A run that measures nothing would succeed.
    pub(crate) fn require_one_of<T: AsRef<str>>(&self, works: &[T]) -> anyhow::Result<()> {
        let names: Vec<_> = works.iter().map(AsRef::as_ref).collect();
        let how = if self.exact { "is named" } else { "has a name that contains" };
        ensure!(
            names.iter().any(|name| self.includes(name)),
            "no work {how} `{}`; there are: {}",
            self.only,
            names.join("; ")
        );
        Ok(())
    }
}

impl PeerFilter {
    /// Whether a contender is measured; Tidegate always is.
    pub(crate) fn includes(&self, contender: &str) -> bool {
        contender == "tidegate" || self.peer.as_ref().is_none_or(|peer| contender.contains(peer))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Bench};

    fn decide_options(line: &str) -> Options {
        let words = ["bench-peers", "decide"].into_iter().chain(line.split_whitespace());
        match Arguments::try_parse_from(words).map(|arguments| arguments.bench) {
            Ok(Bench::Decide(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn work_is_selected_by_a_part_of_its_name_or_exactly() {
        assert!(decide_options("").includes("memory"));
        assert!(decide_options("--only keys").includes("1 k keys"));
        assert!(!decide_options("--only keys").includes("memory"));
        assert!(!decide_options("--only keys --exact").includes("1 k keys"));
        assert!(decide_options("--only memory --exact").includes("memory"));
    }

    #[test]
    fn selection_without_any_work_is_an_error_with_the_names() {
        let error = decide_options("--only missing").require_one_of(&["first", "second"]).unwrap_err();
        assert!(error.to_string().contains("first; second"), "{error}");
    }

    #[test]
    fn tidegate_is_measured_against_the_selected_peer() {
        let filter = PeerFilter { peer: Some("nginx".to_owned()) };
        let contenders = ["nginx", "envoy", "tidegate", "tidegate without limits"];
        let measured: Vec<_> = contenders.into_iter().filter(|name| filter.includes(name)).collect();
        assert_eq!(measured, ["nginx", "tidegate"]);
    }
}
