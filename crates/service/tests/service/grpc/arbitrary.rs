//! The law of the fuzz target `rls` on some inputs.

use proptest::prelude::*;
use prost::Message;

use super::client::{RlsDescriptor, RlsOverride, descriptor, request};
use crate::fixture::corpus;

#[path = "../../../../../fuzz/laws/rls.rs"]
mod rls;

fn descriptors() -> impl Strategy<Value = RlsDescriptor> {
    let entries = proptest::collection::vec(("[kn]", "[ab*]{0,3}"), 0..4);
    let limit = proptest::option::of((any::<u32>(), -1_i32..9));
    (entries, limit, any::<Option<u64>>()).prop_map(|(entries, limit, hits_addend)| {
        let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let limit = limit.map(|(requests_per_unit, unit)| RlsOverride { requests_per_unit, unit });
        RlsDescriptor { limit, hits_addend, ..descriptor(&entries) }
    })
}

proptest! {
    #[test]
    fn rls_any_message_is_answered_or_rejected(
        domain in "d|tidegate|x|",
        descriptors in proptest::collection::vec(descriptors(), 0..5),
        hits in any::<u32>(),
        cut in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut request = request(&domain, descriptors);
        request.hits_addend = hits;
        let mut bytes = request.encode_to_vec();
        rls::assert_law(&bytes);
        let at = cut.index(bytes.len());
        bytes[at] = byte;
        rls::assert_law(&bytes);
        bytes.truncate(at);
        rls::assert_law(&bytes);
    }

    #[test]
    fn rls_any_configuration_is_accepted_or_rejected(
        text in "domain: d\ndescriptors:\n( {0,6}(- )?(key|value|rate_limit|descriptors|unit|x): ?(k|'a\\*'|\\[\\]|\\{|1|)\n){0,8}",
    ) {
        rls::assert_law(text.as_bytes());
    }
}

#[test]
fn corpus_calls_and_configurations_are_answered_or_rejected() {
    for input in corpus("rls") {
        rls::assert_law(&input);
    }
}
