//! Builds the tree from YAML events, within fixed limits for any input.
//!
//! Aliases are expanded to copies and every copy counts towards the limit, so a small file cannot expand to billions
//! of values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry as HashEntry;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span};

use crate::raw::{Finding, MappingEntry, MappingKey, ProblemReport, SourcePosition, YamlNode, YamlValue};
use crate::render::quote;

/// The maximum nesting depth. The language needs less than ten levels.
const MAX_DEPTH: usize = 32;
/// The maximum number of values. A rule has ten to twenty, keys included, so tens of thousands of rules fit.
const MAX_NODES: usize = 1_000_000;

/// The maximum length of the texts that anchors and aliases copy, in bytes. A text with escapes is not a part of the file, so
/// every copy takes memory.
const MAX_COPIED_TEXT: usize = 16 << 20;

/// Parses `text`. Returns `None` if it is empty or invalid; problems go to `report`.
pub(crate) fn parse<'s>(text: &'s str, report: &mut ProblemReport<'s>) -> Option<YamlNode<'s>> {
    let (tree, result) = build(text, report);
    tree.root.filter(|_| result.is_ok())
}

/// Parses `text` up to its first syntax error. Of an invalid text, the tree has the values of the outermost mapping that are
/// complete before the error.
pub(crate) fn parse_prefix<'s>(text: &'s str, report: &mut ProblemReport<'s>) -> Option<YamlNode<'s>> {
    let (tree, result) = build(text, report);
    if result.is_ok() || tree.root.is_some() {
        return tree.root;
    }
    let OpenLevel { open, id, position, .. } = tree.levels.into_iter().next()?;
    let OpenCollection::Mapping { entries, .. } = open else { return None };
    Some(YamlNode { id, position, value: YamlValue::Mapping(entries) })
}

fn build<'s>(text: &'s str, report: &mut ProblemReport<'s>) -> (TreeBuilder<'s>, Result<(), ParseAbort>) {
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut tree = TreeBuilder::default();
    while let Some(next) = parser.next_event() {
        let step = match next {
            Ok((event, span)) => tree.handle(event, span, report),
            Err(error) => {
                let mark = error.marker();
                let at = position(Span::new(*mark, *mark));
                let info = error.info();
                let finding = Finding::error_at(at, format!("invalid YAML: {info}"));
                report.push(finding.hint(syntax_hint(text, at, &info)));
                Err(ParseAbort)
            }
        };
        if step.is_err() {
            return (tree, step);
        }
    }
    (tree, Ok(()))
}

/// The most likely cause of a syntax error.
fn syntax_hint(text: &str, at: SourcePosition, info: &str) -> &'static str {
    let line = usize::try_from(at.line).ok().and_then(|line| text.lines().nth(line.saturating_sub(1)));
    let line = line.unwrap_or_default();
    if text.contains('\0') {
        "this looks like a binary file; pass the YAML file of the policy"
    } else if line.chars().take_while(|c| c.is_whitespace()).any(|c| c == '\t') || info.contains("tab") {
        "indent with spaces; YAML does not allow tabs here"
    } else if info.contains("recursion limit") {
        "reduce the nesting: at most 32 levels are allowed, and a policy needs fewer than ten"
    } else if info.contains("anchor") {
        "define the anchor with `&name` before the alias, or quote text that begins with `*`"
    } else if info.contains("flow") {
        "close every `{` and `[`, separate entries with `,`, and quote text that contains these characters"
    } else {
        "check for a missing colon, quote or bracket, or inconsistent indentation"
    }
}

/// Parsing cannot continue. The problem has been reported.
struct ParseAbort;

/// A list or mapping whose end has not been read.
enum OpenCollection<'s> {
    List(Vec<YamlNode<'s>>),
    Mapping {
        entries: Vec<MappingEntry<'s>>,
        seen: HashMap<Cow<'s, str>, usize>,
        key: Option<PendingKey<'s>>,
    },
}

/// A key whose value has not been read.
enum PendingKey<'s> {
    Valid(MappingKey<'s>),
    /// Already reported; its value is read and dropped.
    Invalid,
}

struct OpenLevel<'s> {
    open: OpenCollection<'s>,
    id: u32,
    anchor: usize,
    position: SourcePosition,
    /// The number of nodes before it.
    nodes_before: usize,
}

/// The node that an alias refers to.
struct AnchorTarget<'s> {
    node: YamlNode<'s>,
    nodes: usize,
    /// The length of all its texts.
    text: usize,
}

#[derive(Default)]
struct TreeBuilder<'s> {
    levels: Vec<OpenLevel<'s>>,
    anchors: HashMap<usize, AnchorTarget<'s>>,
    root: Option<YamlNode<'s>>,
    documents: usize,
    nodes: usize,
    /// The length of the texts that were copied.
    copied_text: usize,
    next_id: u32,
}

impl<'s> TreeBuilder<'s> {
    fn handle(
        &mut self,
        event: Event<'s>,
        span: Span,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        let at = position(span);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let finding = Finding::error_at(at, "the file contains a second YAML document");
                    report.push(finding.hint("put each policy in its own file, or remove the `---`"));
                    return Err(ParseAbort);
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                reject_tag(tag.is_some(), at, report);
                let quoted = style != ScalarStyle::Plain;
                let id = self.id();
                let node = YamlNode { id, position: at, value: YamlValue::Scalar { text, quoted } };
                self.count(1, at, report)?;
                self.store_anchor(anchor, &node, 1, report)?;
                self.attach(node, report);
            }
            Event::SequenceStart(_, anchor, tag) => {
                reject_tag(tag.is_some(), at, report);
                self.open(OpenCollection::List(Vec::new()), anchor, at, report)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                reject_tag(tag.is_some(), at, report);
                let open = OpenCollection::Mapping { entries: Vec::new(), seen: HashMap::new(), key: None };
                self.open(open, anchor, at, report)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(report)?,
            Event::Alias(id) => self.expand_alias(id, at, report)?,
            _ => {}
        }
        Ok(())
    }

    fn id(&mut self) -> u32 {
        self.next_id = self.next_id.saturating_add(1);
        self.next_id
    }

    fn count(
        &mut self,
        more: usize,
        at: SourcePosition,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let finding = Finding::error_at(at, format!("the file contains more than {MAX_NODES} values"));
        report.push(finding.hint("use fewer values; every use of an alias counts all of its values again"));
        Err(ParseAbort)
    }

    fn count_copy(
        &mut self,
        length: usize,
        at: SourcePosition,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        self.copied_text = self.copied_text.saturating_add(length);
        if self.copied_text <= MAX_COPIED_TEXT {
            return Ok(());
        }
        let finding = Finding::error_at(at, "the aliases of the file copy more than 16 MiB of text");
        report.push(finding.hint("use fewer aliases of long values"));
        Err(ParseAbort)
    }

    fn open(
        &mut self,
        open: OpenCollection<'s>,
        anchor: usize,
        at: SourcePosition,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        let nodes_before = self.nodes;
        self.count(1, at, report)?;
        // A collection spans many lines; mark only its first character.
        let position = SourcePosition { length: 1, ..at };
        let id = self.id();
        self.levels.push(OpenLevel { open, id, anchor, position, nodes_before });
        Ok(())
    }

    fn close(&mut self, report: &mut ProblemReport<'s>) -> Result<(), ParseAbort> {
        let Some(OpenLevel { open, id, anchor, position, nodes_before }) = self.levels.pop() else {
            return Ok(());
        };
        let value = match open {
            OpenCollection::List(items) => YamlValue::List(items),
            OpenCollection::Mapping { entries, .. } => YamlValue::Mapping(entries),
        };
        let node = YamlNode { id, position, value };
        self.store_anchor(anchor, &node, self.nodes.saturating_sub(nodes_before), report)?;
        self.attach(node, report);
        Ok(())
    }

    fn store_anchor(
        &mut self,
        anchor: usize,
        node: &YamlNode<'s>,
        nodes: usize,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        if anchor != 0 {
            // The anchor keeps a copy, so it counts.
            self.count(nodes, node.position, report)?;
            let text = text_length(node);
            self.count_copy(text, node.position, report)?;
            self.anchors.insert(anchor, AnchorTarget { node: node.clone(), nodes, text });
        }
        Ok(())
    }

    fn expand_alias(
        &mut self,
        id: usize,
        at: SourcePosition,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        let Some((nodes, text)) = self.anchors.get(&id).map(|anchored| (anchored.nodes, anchored.text))
        else {
            let finding = Finding::error_at(at, "the alias refers to a value that contains it");
            report.push(finding.hint("write the values out instead of using an alias"));
            return Err(ParseAbort);
        };
        self.count(nodes, at, report)?;
        self.count_copy(text, at, report)?;
        let Some(mut node) = self.anchors.get(&id).map(|anchored| anchored.node.clone()) else {
            return Err(ParseAbort);
        };
        if self.levels.len().saturating_add(depth(&node)) > MAX_DEPTH {
            let finding = Finding::error_at(at, format!("values are nested deeper than {MAX_DEPTH} levels"));
            report.push(finding.hint("reduce the nesting; a policy needs fewer than ten levels"));
            return Err(ParseAbort);
        }
        node.position = at;
        self.attach(node, report);
        Ok(())
    }

    /// Adds a finished node to its parent.
    fn attach(&mut self, node: YamlNode<'s>, report: &mut ProblemReport<'s>) {
        match self.levels.last_mut().map(|level| &mut level.open) {
            None => self.root = Some(node),
            Some(OpenCollection::List(items)) => items.push(node),
            Some(OpenCollection::Mapping { entries, seen, key }) => match key.take() {
                None => *key = Some(read_key(node, entries, seen, report)),
                Some(PendingKey::Valid(key)) => entries.push(MappingEntry { key, value: node }),
                Some(PendingKey::Invalid) => {}
            },
        }
    }
}

/// Reads `node` as a key; reports a key that is not a scalar or is a duplicate.
fn read_key<'s>(
    node: YamlNode<'s>,
    entries: &[MappingEntry<'s>],
    seen: &mut HashMap<Cow<'s, str>, usize>,
    report: &mut ProblemReport<'s>,
) -> PendingKey<'s> {
    let YamlNode { id, position, value: YamlValue::Scalar { text, .. } } = node else {
        let finding =
            Finding::error_at(node.position, format!("a key must be a string, not {}", node.describe()));
        report.push(finding.hint("quote keys that begin with `{` or `[`"));
        return PendingKey::Invalid;
    };
    let first = match seen.entry(text.clone()) {
        HashEntry::Vacant(slot) => {
            // The entry is pushed when its value is complete.
            slot.insert(entries.len());
            return PendingKey::Valid(MappingKey { id, position, text });
        }
        HashEntry::Occupied(slot) => entries.get(*slot.get()).map(|entry| &entry.key),
    };
    let finding = Finding::error_at(position, format!("duplicate key {}", quote(&text)));
    report.push(match first {
        Some(first) => {
            let hint = format!("first defined on line {}; remove one of them", first.position.line);
            finding.with_path_of(first).hint(hint)
        }
        None => finding.hint("remove one of them"),
    });
    PendingKey::Invalid
}

fn reject_tag(tagged: bool, at: SourcePosition, report: &mut ProblemReport<'_>) {
    if tagged {
        report.push(Finding::error_at(at, "YAML tags (`!name`) are not supported").hint("remove the tag"));
    }
}

/// The length of all texts of a node, keys included.
fn text_length(node: &YamlNode<'_>) -> usize {
    match &node.value {
        YamlValue::Scalar { text, .. } => text.len(),
        YamlValue::List(items) => items.iter().map(text_length).sum(),
        YamlValue::Mapping(entries) => {
            entries.iter().map(|entry| entry.key.text.len() + text_length(&entry.value)).sum()
        }
    }
}

/// The nesting depth of a node.
fn depth(node: &YamlNode<'_>) -> usize {
    let deepest = match &node.value {
        YamlValue::Scalar { .. } => return 0,
        YamlValue::List(items) => items.iter().map(depth).max(),
        YamlValue::Mapping(entries) => entries.iter().map(|entry| depth(&entry.value)).max(),
    };
    deepest.unwrap_or(0).saturating_add(1)
}

fn position(span: Span) -> SourcePosition {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (start, end) = (span.start, span.end);
    let length = if end.line() == start.line() { end.col().saturating_sub(start.col()) } else { 1 };
    SourcePosition {
        offset: start.byte_offset().unwrap_or(start.index()),
        line: number(start.line()),
        column: number(start.col()).saturating_add(1),
        length: number(length.max(1)),
    }
}
