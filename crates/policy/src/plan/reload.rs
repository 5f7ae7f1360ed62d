//! When changed files are applied.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_core::{Ratio, TimeSpan};

use super::{Plan, Secret};

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
    "{removed} of {before} {list} would be removed, more than {}; the file may be incomplete",
    crate::units::percent_text(.max_loss.as_millionths())
)]
pub struct ExcessiveLoss {
    /// What the list contains.
    pub list: &'static str,
    /// Its length in the running policy.
    pub before: usize,
    /// How many of its members the new policy lacks.
    pub removed: usize,
    /// The limit.
    pub max_loss: Ratio,
}

impl Plan {
    /// Checks that replacing this policy by `new` removes at most `reload.max_loss` of each list. The limit is that of this
    /// policy: the new file may be incomplete.
    pub fn check_loss(&self, new: &Self) -> Result<(), ExcessiveLoss> {
        let max_loss = self.reload.max_loss;
        for (list, before, removed) in self.losses(new) {
            // Exact: both products fit into 128 bits.
            let is_excessive = u128::from(Ratio::ONE.as_millionths()) * (removed as u128)
                > u128::from(max_loss.as_millionths()) * (before as u128);
            if is_excessive {
                return Err(ExcessiveLoss { list, before, removed, max_loss });
            }
        }
        Ok(())
    }

    /// The lists that other programs write, with their lengths and the number of members that `new` lacks: as many others do not
    /// replace them. Bans of the file count for themselves too: the policy may have many others.
    fn losses(&self, new: &Self) -> [(&'static str, usize, usize); 5] {
        let banned = AddressRanges::of(&new.bans);
        let lifted = |bans: &[IpNet]| bans.iter().filter(|network| !banned.contain(network)).count();
        // Without `allow`, all networks are served.
        let (allowed, removed_allowed) = match (&self.allow, &new.allow) {
            (Some(old), Some(new)) => {
                let served = AddressRanges::of(new);
                (old.len(), old.iter().filter(|network| !served.contain(network)).count())
            }
            (old, _) => (old.as_ref().map_or(0, Vec::len), 0),
        };
        let keys = self.directory.as_ref().map_or(0, |directory| directory.len());
        let removed_keys = match (&self.directory, &new.directory) {
            (Some(old), Some(new)) => old.count_missing_in(new),
            (Some(_), None) => keys,
            (None, _) => 0,
        };
        let (exempt, new_exempt) = (&self.clients.exempt.api_keys, &new.clients.exempt.api_keys);
        let known: HashSet<&[u8]> = new_exempt.iter().map(Secret::expose).collect();
        let removed_exempt = exempt.iter().filter(|key| !known.contains(key.expose())).count();
        [
            ("bans", self.bans.len(), lifted(&self.bans)),
            ("bans in `bans.file`", self.file_bans.len(), lifted(&self.file_bans)),
            ("networks in `allow`", allowed, removed_allowed),
            ("API keys", keys, removed_keys),
            ("exempt API keys", exempt.len(), removed_exempt),
        ]
    }
}

/// The addresses of networks, whatever networks they are divided into. In ascending order, without gaps that are none.
pub(crate) struct AddressRanges(Vec<(AddressNumber, AddressNumber)>);

/// An address as a number, with its family.
type AddressNumber = (bool, u128);

impl AddressRanges {
    /// `networks` are in ascending order.
    pub(crate) fn of(networks: &[IpNet]) -> Self {
        let mut ranges: Vec<(AddressNumber, AddressNumber)> = Vec::new();
        for network in networks {
            let (first, last) = bounds(network);
            match ranges.last_mut() {
                Some((_, end)) if end.0 == first.0 && first.1 <= end.1.saturating_add(1) => {
                    end.1 = end.1.max(last.1);
                }
                Some(_) | None => ranges.push((first, last)),
            }
        }
        Self(ranges)
    }

    /// Whether all addresses of a network are among them.
    pub(crate) fn contain(&self, network: &IpNet) -> bool {
        let (first, last) = bounds(network);
        let after = self.0.partition_point(|(start, _)| *start <= first);
        let range = after.checked_sub(1).and_then(|at| self.0.get(at));
        range.is_some_and(|(_, end)| end.0 == last.0 && last.1 <= end.1)
    }
}

fn bounds(network: &IpNet) -> (AddressNumber, AddressNumber) {
    let number = |address| match address {
        IpAddr::V4(address) => (false, u128::from(address.to_bits())),
        IpAddr::V6(address) => (true, address.to_bits()),
    };
    (number(network.network()), number(network.broadcast()))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use ipnet::IpNet;

    use super::AddressRanges;
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
        compile_with(reload, &lists)
    }

    fn compile_with(reload: &str, lists: &Lists) -> Plan {
        let text = format!(
            "{reload}bans: {{ file: bans.txt, networks: ['2001:db8::/32', '198.51.100.0/24', '192.0.2.0/24'] }}\n\
             clients: {{ tiers: {{ file: keys.csv }} }}\n\
             rate_limits: {{ default: {{ requests: 1, window: 1s }}, tiers: {{ free: {{ requests: 1, window: 1s }} }} }}\n"
        );
        compile("policy.yaml", text.as_bytes(), lists).unwrap().plan
    }

    #[test]
    fn reload_that_loses_more_than_the_limit_of_a_list_is_refused() {
        let before = plan("", 4, 100);
        let refusal =
            |bans, keys| before.check_loss(&plan("", bans, keys)).err().map(|loss| loss.to_string());
        assert_eq!(refusal(4, 100), None);
        assert_eq!(refusal(200, 1_000), None);
        assert_eq!(refusal(2, 50), None, "exactly half");
        let keys = "51 of 100 API keys would be removed, more than 50%; the file may be incomplete";
        assert_eq!(refusal(4, 49).as_deref(), Some(keys));
        let bans = refusal(1, 100).unwrap();
        assert!(bans.starts_with("3 of 4 bans in `bans.file` would be removed,"), "{bans}");
        assert!(refusal(4, 0).is_some() && refusal(0, 100).is_some());
    }

    #[test]
    fn reload_that_replaces_members_by_others_is_refused() {
        let before = plan("", 4, 100);
        let with = |network: &str, key: &str| {
            let lists = Lists {
                bans: (0..4).map(|n| format!("{network}.{n}\n")).collect::<Vec<_>>().concat(),
                keys: (0..100).map(|n| format!("{key}-{n},free\n")).collect::<Vec<_>>().concat(),
            };
            before.check_loss(&compile_with("", &lists)).err().map(|loss| loss.to_string())
        };
        assert_eq!(with("203.0.113", "key"), None);
        let bans = with("203.0.114", "key").unwrap();
        assert!(bans.starts_with("4 of 7 bans would be removed, more than 50%"), "{bans}");
        let keys = with("203.0.113", "other").unwrap();
        assert!(keys.starts_with("100 of 100 API keys would be removed"), "{keys}");
    }

    #[test]
    fn networks_that_are_joined_or_divided_are_not_removed() {
        let ranges = |networks: &[&str]| {
            let mut networks: Vec<IpNet> = networks.iter().map(|network| network.parse().unwrap()).collect();
            networks.sort();
            AddressRanges::of(&networks)
        };
        let contain = |ranges: &AddressRanges, network: &str| ranges.contain(&network.parse().unwrap());
        let halves =
            ranges(&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "11.0.0.0/32", "::/1", "8000::/1"]);
        assert!(
            contain(&halves, "10.0.0.0/8") && contain(&halves, "10.1.2.3/32") && contain(&halves, "::/0")
        );
        assert!(!contain(&halves, "10.0.0.0/7") && !contain(&halves, "11.0.0.1/32"));
        assert!(!contain(&halves, "0.0.0.0/0") && !contain(&ranges(&[]), "::/0"));
        assert!(contain(&ranges(&["0.0.0.0/0", "::/0"]), "255.255.255.255/32"));
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
