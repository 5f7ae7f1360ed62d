//! The services and messages as reflection describes them: the fields that this server reads and writes, from the files in
//! `proto/`. `descriptors.bin` is what a protobuf compiler makes of them; a test compares the two.

use std::sync::LazyLock;

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};

const ENCODED: &[u8] = include_bytes!("descriptors.bin");

/// All files.
static FILES: LazyLock<Vec<FileDescriptorProto>> =
    LazyLock::new(|| FileDescriptorSet::decode(ENCODED).unwrap_or_default().file);

/// The services that reflection lists.
pub(super) fn services() -> impl Iterator<Item = String> {
    FILES
        .iter()
        .flat_map(|file| file.service.iter().map(|service| format!("{}.{}", file.package(), service.name())))
}

/// The file called `name`.
pub(super) fn file(name: &str) -> Option<&'static FileDescriptorProto> {
    FILES.iter().find(|file| file.name() == name)
}

/// The file that defines `symbol`: a service, a method, a message, an enumeration or a field.
pub(super) fn file_of(symbol: &str) -> Option<&'static FileDescriptorProto> {
    FILES.iter().find(|file| {
        let within = |package: &str, name: &str| {
            let rest = symbol.strip_prefix(package).and_then(|rest| rest.strip_prefix('.'));
            rest.and_then(|rest| rest.strip_prefix(name))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let names = (file.service.iter().map(ServiceDescriptorProto::name))
            .chain(file.message_type.iter().map(DescriptorProto::name))
            .chain(file.enum_type.iter().map(EnumDescriptorProto::name));
        names.into_iter().any(|name| within(file.package(), name))
    })
}

/// All files that `file` imports, directly or not.
pub(super) fn imports_of(file: &FileDescriptorProto) -> Vec<&'static FileDescriptorProto> {
    let mut found: Vec<&FileDescriptorProto> = Vec::new();
    let mut names: Vec<&str> = file.dependency.iter().map(String::as_str).collect();
    while let Some(name) = names.pop() {
        if found.iter().any(|found| found.name() == name) {
            continue;
        }
        if let Some(import) = self::file(name) {
            names.extend(import.dependency.iter().map(String::as_str));
            found.push(import);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::message::ResponseUnit;

    const RLS: &str = "envoy/service/ratelimit/v3/rls.proto";

    #[test]
    fn descriptors_are_those_of_the_proto_files() {
        let files = [
            RLS,
            "grpc/health/v1/health.proto",
            "grpc/reflection/v1/reflection.proto",
            "grpc/reflection/v1alpha/reflection.proto",
        ];
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
        let mut compiler = protox::Compiler::new([directory]).expect("a directory");
        compiler.include_imports(true).open_files(files).expect("valid files");
        let encoded = compiler.encode_file_descriptor_set();
        let pending = concat!(env!("CARGO_MANIFEST_DIR"), "/src/grpc/descriptors.bin.new");
        if encoded != ENCODED {
            std::fs::write(pending, &encoded).expect("a file");
        }
        assert!(encoded == ENCODED, "rename {pending} to descriptors.bin, and commit it");
    }

    #[test]
    fn schema_units_have_the_names_and_numbers_of_responses() {
        let file = file("envoy/type/v3/ratelimit_unit.proto").expect("a file");
        let units = file.enum_type.first().expect("the units");
        let names: Vec<_> = units.value.iter().map(|value| (value.number(), value.name())).collect();
        assert_eq!(names, (0..).zip(ResponseUnit::NAMES).collect::<Vec<_>>());
    }

    #[test]
    fn schema_every_import_is_a_file() {
        for file in FILES.iter() {
            for import in &file.dependency {
                assert!(super::file(import).is_some(), "{}: {import}", file.name());
            }
        }
    }

    #[test]
    fn schema_symbol_is_found_in_its_file() {
        let listed: Vec<_> = services().collect();
        assert_eq!(
            listed,
            [
                "envoy.service.ratelimit.v3.RateLimitService",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ]
        );
        for service in &listed {
            assert!(file_of(service).is_some(), "{service}");
        }
        let method = "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit";
        assert_eq!(file_of(method).map(FileDescriptorProto::name), Some(RLS));
        assert!(file_of("envoy.service.ratelimit.v3.RateLimitServiceX").is_none());
    }
}
