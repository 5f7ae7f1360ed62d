//! Bans as sets of nftables, for those who want them dropped before they reach the gateway.

use std::net::IpAddr;

use anyhow::Context;
use ipnet::IpNet;
use serde_json::Value;

/// A banned network.
struct Network {
    net: IpNet,
    /// Seconds since 1970; `None` without end.
    until: Option<u64>,
    /// How long it still is, in words that nftables knows.
    timeout: Option<String>,
}

/// A set of each family.
pub(super) fn sets<'b>(bans: impl Iterator<Item = &'b Value>) -> anyhow::Result<String> {
    let mut networks = Vec::new();
    // Who is locked out for a while is answered with when to come back.
    for ban in bans.filter(|ban| ban["kind"] != "penalty") {
        let subject = ban["subject"].as_str().unwrap_or_default();
        // Other clients have no address that nftables could know.
        let Some(address) = subject.strip_prefix("ip:") else { continue };
        let net = match address.parse::<IpNet>() {
            Ok(net) => net,
            Err(_) => {
                IpNet::from(address.parse::<IpAddr>().with_context(|| format!("{subject} is no network"))?)
            }
        };
        let timeout = ban["left"].as_str().map(timeout);
        networks.push(Network { net, until: ban["until"].as_u64(), timeout });
    }
    let networks = without_overlaps(networks);
    let of = |is_v4: bool| networks.iter().filter(move |network| network.net.addr().is_ipv4() == is_v4);
    Ok(format!(
        "\
#!/usr/sbin/nft -f
# Networks that are banned. Loading this again replaces what the sets hold, and nothing else. To drop them, once:
#   nft add chain inet tidegate input '{{ type filter hook input priority -10; }}'
#   nft add rule inet tidegate input ip saddr @banned_v4 drop
#   nft add rule inet tidegate input ip6 saddr @banned_v6 drop
add table inet tidegate
{}{}",
        set("banned_v4", "ipv4_addr", of(true)),
        set("banned_v6", "ipv6_addr", of(false)),
    ))
}

fn set<'n>(name: &str, kind: &str, networks: impl Iterator<Item = &'n Network>) -> String {
    let element = |network: &Network| match &network.timeout {
        Some(timeout) => format!("  {} timeout {timeout}", network.net),
        None => format!("  {}", network.net),
    };
    let elements: Vec<_> = networks.map(element).collect();
    let elements = if elements.is_empty() {
        String::new()
    } else {
        format!("add element inet tidegate {name} {{\n{}\n}}\n", elements.join(",\n"))
    };
    let made = format!("add set inet tidegate {name} {{ type {kind}; flags interval, timeout; }}");
    format!("{made}\nflush set inet tidegate {name}\n{elements}")
}

/// Sets take no overlaps. The widest network stays, with its own end: nobody is dropped for longer than they are
/// banned, and the gateway still refuses the rest.
fn without_overlaps(mut networks: Vec<Network>) -> Vec<Network> {
    // Of equal ones that which lasts longest comes first.
    networks.sort_by_key(|network| {
        (
            network.net.network(),
            network.net.prefix_len(),
            std::cmp::Reverse(network.until.unwrap_or(u64::MAX)),
        )
    });
    let mut kept: Vec<Network> = Vec::new();
    for network in networks {
        // In this order a network comes right behind those that hold it.
        if kept.last().is_none_or(|last| !last.net.contains(&network.net)) {
            kept.push(network);
        }
    }
    kept
}

/// `1d2h3m4s`: nftables knows our units, but no spaces.
fn timeout(left: &str) -> String {
    left.replace(' ', "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn networks_become_two_sets_without_overlaps() {
        let bans = [
            json!({ "subject": "ip:203.0.113.0/24", "until": 100, "left": "1h" }),
            json!({ "subject": "ip:203.0.113.7" }),
            json!({ "subject": "ip:203.0.113.0/24" }),
            json!({ "subject": "ip:198.51.100.7", "until": 50, "left": "30s" }),
            json!({ "subject": "user:bob" }),
            json!({ "subject": "ip:2001:db8::/64" }),
        ];
        let text = sets(bans.iter()).unwrap();
        assert!(text.contains("{\n  198.51.100.7/32 timeout 30s,\n  203.0.113.0/24\n}\n"), "{text}");
        assert!(text.contains("  2001:db8::/64\n"), "{text}");
        assert!(!text.contains("bob") && !text.contains("203.0.113.7"), "{text}");
        let none = sets([].iter()).unwrap();
        assert!(!none.contains("add element"), "{none}");
    }
}
