//! When changed files are applied.

use tidegate_core::{Ratio, TimeSpan};

use super::Plan;

/// When changed files are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReloadPlan {
    /// How long a file that is written in place must stay unchanged.
    pub quiet: TimeSpan,
    /// The largest part of the bans or keys that a reload may remove.
    pub max_loss: Ratio,
}

impl Default for ReloadPlan {
    fn default() -> Self {
        Self { quiet: TimeSpan::from_secs(2), max_loss: Ratio::from_percent(50) }
    }
}

/// A new policy lacks more bans or keys than [`ReloadPlan::max_loss`] of the running one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{before} {list} would become {after}, a loss of more than {}; the file may be incomplete",
    crate::units::percent_text(.max_loss.as_millionths())
)]
pub struct ExcessiveLoss {
    /// What the list contains.
    pub list: &'static str,
    /// Its length in the running policy.
    pub before: usize,
    /// Its length in the new policy.
    pub after: usize,
    /// The limit.
    pub max_loss: Ratio,
}

impl Plan {
    /// Checks that replacing this policy by `new` removes at most `reload.max_loss` of each list. The limit is that of this
    /// policy: the new file may be incomplete.
    pub fn check_loss(&self, new: &Self) -> Result<(), ExcessiveLoss> {
        let max_loss = self.reload.max_loss;
        let kept = u64::from(Ratio::ONE.as_millionths() - max_loss.as_millionths());
        for ((list, before), (_, after)) in self.lists().into_iter().zip(new.lists()) {
            // Exact: both products fit into 128 bits.
            let is_loss = u128::from(Ratio::ONE.as_millionths()) * (after as u128)
                < u128::from(kept) * (before as u128);
            if is_loss {
                return Err(ExcessiveLoss { list, before, after, max_loss });
            }
        }
        Ok(())
    }

    /// The lists that other programs write, with their lengths. Bans of the file count for themselves too: the policy may have
    /// many others.
    fn lists(&self) -> [(&'static str, usize); 4] {
        [
            ("bans", self.bans.len()),
            ("bans in `bans.file`", self.file_bans),
            ("API keys", self.directory.as_ref().map_or(0, |directory| directory.len())),
            ("exempt API keys", self.clients.exempt.api_keys.len()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use crate::{FileError, Files, Plan, compile};

    /// The ban file and the keys file of a policy.
    struct Lists {
        bans: String,
        keys: String,
    }

    impl Files for Lists {
        fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
            match name {
                "bans.txt" => Ok(self.bans.as_bytes().into()),
                "keys.csv" => Ok(self.keys.as_bytes().into()),
                _ => Err(FileError::Missing),
            }
        }
    }

    fn plan(reload: &str, bans: usize, keys: usize) -> Plan {
        let lists = Lists {
            bans: (0..bans).map(|n| format!("203.0.113.{n}\n")).collect::<Vec<_>>().concat(),
            keys: (0..keys).map(|n| format!("key-{n},free\n")).collect::<Vec<_>>().concat(),
        };
        let text = format!(
            "{reload}bans: {{ file: bans.txt, networks: ['2001:db8::/32', '198.51.100.0/24', '192.0.2.0/24'] }}\n\
             clients: {{ tiers: {{ file: keys.csv }} }}\n\
             rate_limits: {{ default: {{ requests: 1, window: 1s }}, tiers: {{ free: {{ requests: 1, window: 1s }} }} }}\n"
        );
        compile("policy.yaml", text.as_bytes(), &lists).unwrap().plan
    }

    #[test]
    fn reload_that_loses_more_than_the_limit_of_a_list_is_refused() {
        let before = plan("", 4, 100);
        let refusal =
            |bans, keys| before.check_loss(&plan("", bans, keys)).err().map(|loss| loss.to_string());
        assert_eq!(refusal(4, 100), None);
        assert_eq!(refusal(200, 1_000), None);
        assert_eq!(refusal(2, 50), None, "exactly half");
        let keys = "100 API keys would become 49, a loss of more than 50%; the file may be incomplete";
        assert_eq!(refusal(4, 49).as_deref(), Some(keys));
        let bans = refusal(1, 100).unwrap();
        assert!(bans.starts_with("4 bans in `bans.file` would become 1,"), "{bans}");
        assert!(refusal(4, 0).is_some() && refusal(0, 100).is_some());
    }

    #[test]
    fn limit_of_the_running_policy_applies_to_a_reload() {
        let (strict, lenient) =
            ("reload: { max_loss: 1%, quiet: 100ms }\n", "reload: { max_loss: 100%, quiet: 1h }\n");
        assert!(plan(lenient, 4, 100).check_loss(&plan(strict, 0, 0)).is_ok());
        assert!(plan(strict, 4, 100).check_loss(&plan(lenient, 4, 99)).is_ok());
        assert!(plan(strict, 4, 100).check_loss(&plan(lenient, 4, 98)).is_err());
    }
}
