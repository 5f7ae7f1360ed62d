//! YAML events → tree, within bounds whatever is written.
//!
//! Aliases are copies, and every copy is counted: a file of a few lines that would unfold to billions of values
//! ends at the bound.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry as HashEntry;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span};

use crate::raw::{Finding, MappingEntry, MappingKey, ProblemReport, SourcePosition, YamlNode, YamlValue};
use crate::render::quote;

/// No policy nests deeper; the language itself needs less than ten levels.
const MAX_DEPTH: usize = 32;
/// A rule is ten to twenty values, keys included, so tens of thousands of rules stay below.
const MAX_NODES: usize = 1_000_000;

/// The tree of `text`; `None` where there is none to speak of. What is wrong goes to `report`.
pub(crate) fn parse<'s>(text: &'s str, report: &mut ProblemReport<'s>) -> Option<YamlNode<'s>> {
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut tree = TreeBuilder::default();
    while let Some(next) = parser.next_event() {
        let step = match next {
            Ok((event, span)) => tree.take(event, span, report),
            Err(error) => {
                let mark = error.marker();
                let at = position(Span::new(*mark, *mark));
                let info = error.info();
                let finding = Finding::error_at(at, format!("the YAML cannot be read: {info}"));
                report.push(finding.hint(syntax_hint(text, at, &info)));
                Err(ParseAbort)
            }
        };
        if step.is_err() {
            return None;
        }
    }
    tree.root
}

/// What most often stands behind a syntax error.
fn syntax_hint(text: &str, at: SourcePosition, info: &str) -> &'static str {
    let line = usize::try_from(at.line).ok().and_then(|line| text.lines().nth(line.saturating_sub(1)));
    let line = line.unwrap_or_default();
    if text.contains('\0') {
        "this looks like a binary file; give the policy's YAML file"
    } else if line.chars().take_while(|c| c.is_whitespace()).any(|c| c == '\t') || info.contains("tab") {
        "indent with spaces; YAML allows no tabs there"
    } else if info.contains("recursion limit") {
        "values may nest 32 levels deep; a policy needs fewer than ten"
    } else if info.contains("anchor") {
        "define it with `&name` before it is used, or quote a text that begins with `*`"
    } else if info.contains("flow") {
        "close every `{` and `[`, write `,` between their entries, and quote texts that hold these characters"
    } else {
        "look for a missing colon, quote or bracket, or for uneven indentation"
    }
}

/// Nothing sensible follows.
struct ParseAbort;

/// A collection that is still open.
enum OpenCollection<'s> {
    List(Vec<YamlNode<'s>>),
    Mapping {
        entries: Vec<MappingEntry<'s>>,
        seen: HashMap<Cow<'s, str>, usize>,
        key: Option<PendingKey<'s>>,
    },
}

/// A key that waits for its value.
enum PendingKey<'s> {
    Good(MappingKey<'s>),
    /// Reported already; its value is read and dropped.
    Bad,
}

struct OpenLevel<'s> {
    open: OpenCollection<'s>,
    id: u32,
    anchor: usize,
    position: SourcePosition,
    /// How many nodes there were before it.
    nodes_before: usize,
}

/// What an alias stands for.
struct AnchorTarget<'s> {
    node: YamlNode<'s>,
    nodes: usize,
}

#[derive(Default)]
struct TreeBuilder<'s> {
    levels: Vec<OpenLevel<'s>>,
    anchors: HashMap<usize, AnchorTarget<'s>>,
    root: Option<YamlNode<'s>>,
    documents: usize,
    nodes: usize,
    next_id: u32,
}

impl<'s> TreeBuilder<'s> {
    fn take(
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
                    let finding = Finding::error_at(at, "a second YAML document begins here");
                    report.push(finding.hint("keep one policy in a file; remove the `---` between them"));
                    return Err(ParseAbort);
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.is_some(), at, report);
                let quoted = style != ScalarStyle::Plain;
                let id = self.id();
                let node = YamlNode { id, position: at, value: YamlValue::Scalar { text, quoted } };
                self.count(1, at, report)?;
                self.remember(anchor, &node, 1, report)?;
                self.put(node, report);
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.is_some(), at, report);
                self.open(OpenCollection::List(Vec::new()), anchor, at, report)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.is_some(), at, report);
                let open = OpenCollection::Mapping { entries: Vec::new(), seen: HashMap::new(), key: None };
                self.open(open, anchor, at, report)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(report)?,
            Event::Alias(id) => self.alias(id, at, report)?,
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
        let finding = Finding::error_at(at, format!("the file holds more than {MAX_NODES} values"));
        report
            .push(finding.hint("aliases count as often as they are used; write fewer, or split the policy"));
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
        // What a collection spans is many lines; its first character is enough to find it.
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
        self.remember(anchor, &node, self.nodes.saturating_sub(nodes_before), report)?;
        self.put(node, report);
        Ok(())
    }

    fn remember(
        &mut self,
        anchor: usize,
        node: &YamlNode<'s>,
        nodes: usize,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        if anchor != 0 {
            // Remembering is copying, so it counts.
            self.count(nodes, node.position, report)?;
            self.anchors.insert(anchor, AnchorTarget { node: node.clone(), nodes });
        }
        Ok(())
    }

    fn alias(
        &mut self,
        id: usize,
        at: SourcePosition,
        report: &mut ProblemReport<'s>,
    ) -> Result<(), ParseAbort> {
        let Some(nodes) = self.anchors.get(&id).map(|anchored| anchored.nodes) else {
            let finding = Finding::error_at(at, "this alias stands inside what it refers to");
            report.push(finding.hint("write the values out"));
            return Err(ParseAbort);
        };
        self.count(nodes, at, report)?;
        let Some(mut node) = self.anchors.get(&id).map(|anchored| anchored.node.clone()) else {
            return Err(ParseAbort);
        };
        if self.levels.len().saturating_add(depth(&node)) > MAX_DEPTH {
            let finding = Finding::error_at(at, format!("values nest deeper than {MAX_DEPTH} levels"));
            report.push(finding.hint("a policy needs fewer than ten levels"));
            return Err(ParseAbort);
        }
        node.position = at;
        self.put(node, report);
        Ok(())
    }

    /// Puts a finished node where it belongs.
    fn put(&mut self, node: YamlNode<'s>, report: &mut ProblemReport<'s>) {
        match self.levels.last_mut().map(|level| &mut level.open) {
            None => self.root = Some(node),
            Some(OpenCollection::List(items)) => items.push(node),
            Some(OpenCollection::Mapping { entries, seen, key }) => match key.take() {
                None => *key = Some(pending(node, entries, seen, report)),
                Some(PendingKey::Good(key)) => entries.push(MappingEntry { key, value: node }),
                Some(PendingKey::Bad) => {}
            },
        }
    }
}

/// The key that `node` is, unless it cannot be one.
fn pending<'s>(
    node: YamlNode<'s>,
    entries: &[MappingEntry<'s>],
    seen: &mut HashMap<Cow<'s, str>, usize>,
    report: &mut ProblemReport<'s>,
) -> PendingKey<'s> {
    let YamlNode { id, position, value: YamlValue::Scalar { text, .. } } = node else {
        let finding =
            Finding::error_at(node.position, format!("a key must be a text, not {}", node.describe()));
        report.push(finding.hint("quote a key that begins with `{` or `[`"));
        return PendingKey::Bad;
    };
    let first = match seen.entry(text.clone()) {
        HashEntry::Vacant(slot) => {
            // Its entry comes next.
            slot.insert(entries.len());
            return PendingKey::Good(MappingKey { id, position, text });
        }
        HashEntry::Occupied(slot) => entries.get(*slot.get()).map(|entry| &entry.key),
    };
    let finding = Finding::error_at(position, format!("the key {} is written twice", quote(&text)));
    report.push(match first {
        Some(first) => {
            let hint = format!("it stands on line {} already; keep one of them", first.position.line);
            finding.like(first).hint(hint)
        }
        None => finding.hint("keep one of them"),
    });
    PendingKey::Bad
}

fn refuse_tag(tagged: bool, at: SourcePosition, report: &mut ProblemReport<'_>) {
    if tagged {
        report.push(Finding::error_at(at, "YAML tags (`!name`) mean nothing here").hint("remove the tag"));
    }
}

/// How many levels a node has.
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
