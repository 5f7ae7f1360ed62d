//! The descriptors of a domain, and their lookup.

use hashbrown::HashMap;

use super::DescriptorLimit;
use super::wildcard::WildcardPattern;

/// The descriptors of one domain.
#[derive(Debug, Default)]
pub struct EnvoyDomain {
    pub(super) root: DescriptorLevel,
}

/// The descriptors of one nesting level, by key.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    pub(super) keys: HashMap<String, KeyDescriptors, foldhash::fast::RandomState>,
}

/// The descriptors with one key.
#[derive(Debug, Default)]
pub(super) struct KeyDescriptors {
    pub(super) nodes: Vec<DescriptorNode>,
    /// The positions of those with a value, including wildcards.
    pub(super) by_value: HashMap<String, usize, foldhash::fast::RandomState>,
    /// Those whose value is a wildcard, in the order of the file.
    pub(super) wildcards: Vec<(WildcardPattern, usize)>,
    /// The one without a value.
    pub(super) bare: Option<usize>,
}

/// A descriptor of the configuration.
#[derive(Debug, Default)]
pub(super) struct DescriptorNode {
    pub(super) limit: Option<DescriptorLimit>,
    /// The pattern that replaces the value in the key of a counter, so that all values share one.
    pub(super) shared_pattern: Option<String>,
    pub(super) children: DescriptorLevel,
}

impl EnvoyDomain {
    /// Finds the limit of a descriptor with these keys and values: at each level the exact value, then the wildcards in
    /// the order of the file, then the key without a value. The number of entries must equal the nesting depth.
    ///
    /// Appends the client that the counter counts to `client`: the values of the entries, each with its length. Without a
    /// limit, what is appended has no meaning. A value need not be UTF-8, as a header need not: then it matches wildcards by its
    /// other characters.
    pub fn find<'d, 'e, V: AsRef<[u8]> + ?Sized + 'e>(
        &'d self,
        entries: impl IntoIterator<Item = (&'e str, &'e V)>,
        client: &mut Vec<u8>,
    ) -> Option<&'d DescriptorLimit> {
        let mut level = &self.root;
        let mut found = None;
        for (key, value) in entries {
            let value = value.as_ref();
            let node = level.keys.get(key)?.find(value)?;
            append_text(client, node.shared_pattern.as_deref().map_or(value, str::as_bytes));
            level = &node.children;
            found = Some(node);
        }
        found?.limit.as_ref()
    }

    /// Every limit of the domain, in no particular order.
    pub fn limits(&self) -> impl Iterator<Item = &DescriptorLimit> {
        let mut levels = vec![&self.root];
        let mut limits = Vec::new();
        while let Some(level) = levels.pop() {
            for node in level.keys.values().flat_map(|key| &key.nodes) {
                limits.extend(&node.limit);
                levels.push(&node.children);
            }
        }
        limits.into_iter()
    }
}

impl KeyDescriptors {
    fn find(&self, value: &[u8]) -> Option<&DescriptorNode> {
        if self.by_value.is_empty() {
            return self.nodes.get(self.bare?);
        }
        let text = String::from_utf8_lossy(value);
        let wildcard =
            || self.wildcards.iter().find(|(pattern, _)| pattern.matches(&text)).map(|(_, node)| *node);
        let exact = self.by_value.get(&*text).copied();
        self.nodes.get(exact.or_else(wildcard).or(self.bare)?)
    }
}

/// Appends a text with its length, so that no two lists of texts have the same bytes.
fn append_text(client: &mut Vec<u8>, text: &[u8]) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    client.extend_from_slice(&length.to_be_bytes());
    client.extend_from_slice(text);
}
