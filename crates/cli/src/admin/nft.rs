//! Prints banned networks as nftables sets, so that the firewall can drop their packets.

use std::net::IpAddr;

use anyhow::Context;
use ipnet::IpNet;
use serde_json::Value;

/// A banned network.
struct BannedNetwork {
    net: IpNet,
    /// Unix time in seconds; `None` for a permanent ban.
    until: Option<u64>,
    /// The remaining time in the format of nftables.
    timeout: Option<String>,
}

/// Formats one set for IPv4 and one for IPv6. Without `with_lock_outs`, locked-out clients reach the gateway, which responds with
/// `Retry-After`.
pub(super) fn format_sets<'b>(
    bans: impl Iterator<Item = &'b Value>,
    with_lock_outs: bool,
) -> anyhow::Result<String> {
    let mut networks = Vec::new();
    for ban in bans.filter(|ban| with_lock_outs || ban["kind"] != "penalty") {
        let subject = ban["subject"].as_str().unwrap_or_default();
        // Subjects such as users and API keys have no address.
        let Some(address) = subject.strip_prefix("ip:") else { continue };
        // A combination locks out one user at an address, not the address.
        if address.contains('+') {
            continue;
        }
        let net =
            match address.parse::<IpNet>() {
                Ok(net) => net,
                Err(_) => IpNet::from(address.parse::<IpAddr>().with_context(|| {
                    format!("invalid network `{subject}` in the response of the admin API")
                })?),
            };
        let timeout = ban["left"].as_str().map(format_timeout);
        networks.push(BannedNetwork { net, until: ban["until"].as_u64(), timeout });
    }
    let networks = remove_overlaps(networks);
    let family = |is_v4: bool| networks.iter().filter(move |network| network.net.addr().is_ipv4() == is_v4);
    Ok(format!(
        "\
#!/usr/sbin/nft -f
# Banned networks. Loading this file replaces the elements of these two sets and nothing else. To drop their packets, run once:
#   nft add chain inet tidegate input '{{ type filter hook input priority -10; }}'
#   nft add rule inet tidegate input ip saddr @banned_v4 drop
#   nft add rule inet tidegate input ip6 saddr @banned_v6 drop
add table inet tidegate
{}{}",
        format_set("banned_v4", "ipv4_addr", family(true)),
        format_set("banned_v6", "ipv6_addr", family(false)),
    ))
}

fn format_set<'n>(name: &str, kind: &str, networks: impl Iterator<Item = &'n BannedNetwork>) -> String {
    let element = |network: &BannedNetwork| match &network.timeout {
        Some(timeout) => format!("  {} timeout {timeout}", network.net),
        None => format!("  {}", network.net),
    };
    let elements: Vec<_> = networks.map(element).collect();
    let elements = if elements.is_empty() {
        String::new()
    } else {
        format!("add element inet tidegate {name} {{\n{}\n}}\n", elements.join(",\n"))
    };
    let definition = format!("add set inet tidegate {name} {{ type {kind}; flags interval, timeout; }}");
    format!("{definition}\nflush set inet tidegate {name}\n{elements}")
}

/// Removes networks that are contained in another one, because sets must not overlap. The widest network stays with its own
/// expiry, so no packet is dropped longer than its network is banned; the gateway enforces the rest.
fn remove_overlaps(mut networks: Vec<BannedNetwork>) -> Vec<BannedNetwork> {
    // Among equal networks, the longest ban comes first.
    networks.sort_by_key(|network| {
        (
            network.net.network(),
            network.net.prefix_len(),
            std::cmp::Reverse(network.until.unwrap_or(u64::MAX)),
        )
    });
    let mut kept: Vec<BannedNetwork> = Vec::new();
    for network in networks {
        // In this order a network directly follows those that contain it.
        if kept.last().is_none_or(|last| !last.net.contains(&network.net)) {
            kept.push(network);
        }
    }
    kept
}

/// `1d2h3m4s`: nftables uses the same units, but without spaces.
fn format_timeout(left: &str) -> String {
    left.replace(' ', "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn banned_networks_overlapping_become_two_sets_without_overlaps() {
        let bans = [
            json!({ "subject": "ip:203.0.113.0/24", "until": 100, "left": "1h" }),
            json!({ "subject": "ip:203.0.113.7" }),
            json!({ "subject": "ip:203.0.113.0/24" }),
            json!({ "subject": "ip:198.51.100.7", "until": 50, "left": "30s" }),
            json!({ "subject": "user:bob" }),
            json!({ "subject": "ip:2001:db8::/64" }),
        ];
        let text = format_sets(bans.iter(), false).unwrap();
        assert!(text.contains("{\n  198.51.100.7/32 timeout 30s,\n  203.0.113.0/24\n}\n"), "{text}");
        assert!(text.contains("  2001:db8::/64\n"), "{text}");
        assert!(!text.contains("bob") && !text.contains("203.0.113.7"), "{text}");
        let none = format_sets([].iter(), true).unwrap();
        assert!(!none.contains("add element"), "{none}");
    }
}
