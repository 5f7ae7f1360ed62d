//! The services and messages as reflection describes them: the fields that this server reads and writes.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MessageOptions, MethodDescriptorProto, ServiceDescriptorProto,
};

use super::message::ResponseUnit;

/// The services that reflection lists.
pub(super) const SERVICES: [&str; 4] = [
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

const RLS: &str = "envoy/service/ratelimit/v3/rls.proto";
const DESCRIPTOR: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const BASE: &str = "envoy/config/core/v3/base.proto";
const DURATION: &str = "google/protobuf/duration.proto";
const STRUCT: &str = "google/protobuf/struct.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const HEALTH: &str = "grpc/health/v1/health.proto";
const REFLECTION: [(&str, &str); 2] = [
    ("grpc/reflection/v1/reflection.proto", "grpc.reflection.v1"),
    ("grpc/reflection/v1alpha/reflection.proto", "grpc.reflection.v1alpha"),
];
/// All files.
const FILES: [&str; 10] =
    [RLS, DESCRIPTOR, UNIT, BASE, DURATION, STRUCT, WRAPPERS, HEALTH, REFLECTION[0].0, REFLECTION[1].0];

/// The file called `name`.
pub(super) fn file(name: &str) -> Option<FileDescriptorProto> {
    Some(match name {
        RLS => rate_limit_service(),
        DESCRIPTOR => descriptor(),
        UNIT => {
            proto(UNIT, "envoy.type.v3", &[]).with_enum(enumeration("RateLimitUnit", &ResponseUnit::NAMES))
        }
        BASE => proto(BASE, "envoy.config.core.v3", &[]).with_message(message(
            "HeaderValue",
            &[field("key", 1, Kind::Text), field("value", 2, Kind::Text)],
        )),
        DURATION => proto(DURATION, "google.protobuf", &[]).with_message(message(
            "Duration",
            &[field("seconds", 1, Kind::Int64), field("nanos", 2, Kind::Int32)],
        )),
        STRUCT => metadata(),
        WRAPPERS => proto(WRAPPERS, "google.protobuf", &[])
            .with_message(message("UInt64Value", &[field("value", 1, Kind::Uint64)])),
        HEALTH => health(),
        name => {
            let (name, package) = REFLECTION.into_iter().find(|(file, _)| *file == name)?;
            reflection(name, package)
        }
    })
}

/// The file that defines `symbol`: a service, a method, a message, an enumeration or a field.
pub(super) fn file_of(symbol: &str) -> Option<FileDescriptorProto> {
    FILES.into_iter().filter_map(file).find(|file| {
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
pub(super) fn imports_of(file: &FileDescriptorProto) -> Vec<FileDescriptorProto> {
    let mut found: Vec<FileDescriptorProto> = Vec::new();
    let mut names = file.dependency.clone();
    while let Some(name) = names.pop() {
        if found.iter().any(|found| found.name() == name) {
            continue;
        }
        if let Some(import) = self::file(&name) {
            names.extend(import.dependency.iter().cloned());
            found.push(import);
        }
    }
    found
}

fn rate_limit_service() -> FileDescriptorProto {
    const RESPONSE: &str = ".envoy.service.ratelimit.v3.RateLimitResponse";
    let limit = message(
        "RateLimit",
        &[
            field("name", 3, Kind::Text),
            field("requests_per_unit", 1, Kind::Uint32),
            field("unit", 2, Kind::Enum(&format!("{RESPONSE}.RateLimit.Unit"))),
        ],
    );
    let limit = DescriptorProto { enum_type: vec![enumeration("Unit", &ResponseUnit::NAMES)], ..limit };
    let status = message(
        "DescriptorStatus",
        &[
            field("code", 1, Kind::Enum(&format!("{RESPONSE}.Code"))),
            field("current_limit", 2, Kind::Message(&format!("{RESPONSE}.RateLimit"))),
            field("limit_remaining", 3, Kind::Uint32),
            field("duration_until_reset", 4, Kind::Message(".google.protobuf.Duration")),
        ],
    );
    let response = message(
        "RateLimitResponse",
        &[
            field("overall_code", 1, Kind::Enum(&format!("{RESPONSE}.Code"))),
            list("statuses", 2, &format!("{RESPONSE}.DescriptorStatus")),
            list("response_headers_to_add", 3, ".envoy.config.core.v3.HeaderValue"),
            list("request_headers_to_add", 4, ".envoy.config.core.v3.HeaderValue"),
            field("raw_body", 5, Kind::Bytes),
            field("dynamic_metadata", 6, Kind::Message(".google.protobuf.Struct")),
        ],
    );
    let response = DescriptorProto {
        nested_type: vec![limit, status],
        enum_type: vec![enumeration("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
        ..response
    };
    let request = message(
        "RateLimitRequest",
        &[
            field("domain", 1, Kind::Text),
            list("descriptors", 2, ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor"),
            field("hits_addend", 3, Kind::Uint32),
        ],
    );
    proto(RLS, "envoy.service.ratelimit.v3", &[BASE, DESCRIPTOR, DURATION, STRUCT])
        .with_message(request)
        .with_message(response)
        .with_service(
            "RateLimitService",
            &[("ShouldRateLimit", "RateLimitRequest", "RateLimitResponse", [false; 2])],
        )
}

fn descriptor() -> FileDescriptorProto {
    const NAME: &str = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let entry = message("Entry", &[field("key", 1, Kind::Text), field("value", 2, Kind::Text)]);
    let carried = message(
        "RateLimitOverride",
        &[
            field("requests_per_unit", 1, Kind::Uint32),
            field("unit", 2, Kind::Enum(".envoy.type.v3.RateLimitUnit")),
        ],
    );
    let descriptor = message(
        "RateLimitDescriptor",
        &[
            list("entries", 1, &format!("{NAME}.Entry")),
            field("limit", 2, Kind::Message(&format!("{NAME}.RateLimitOverride"))),
            field("hits_addend", 3, Kind::Message(".google.protobuf.UInt64Value")),
        ],
    );
    let descriptor = DescriptorProto { nested_type: vec![entry, carried], ..descriptor };
    proto(DESCRIPTOR, "envoy.extensions.common.ratelimit.v3", &[UNIT, WRAPPERS]).with_message(descriptor)
}

/// Metadata: this server writes only texts.
fn metadata() -> FileDescriptorProto {
    let entry = message(
        "FieldsEntry",
        &[field("key", 1, Kind::Text), field("value", 2, Kind::Message(".google.protobuf.Value"))],
    );
    let options = MessageOptions { map_entry: Some(true), ..MessageOptions::default() };
    let entry = DescriptorProto { options: Some(options), ..entry };
    let fields = message("Struct", &[list("fields", 1, ".google.protobuf.Struct.FieldsEntry")]);
    proto(STRUCT, "google.protobuf", &[])
        .with_message(DescriptorProto { nested_type: vec![entry], ..fields })
        .with_message(message("Value", &[field("string_value", 3, Kind::Text)]))
}

fn health() -> FileDescriptorProto {
    let kind = Kind::Enum(".grpc.health.v1.HealthCheckResponse.ServingStatus");
    let response = message("HealthCheckResponse", &[field("status", 1, kind)]);
    let states = enumeration("ServingStatus", &["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]);
    let response = DescriptorProto { enum_type: vec![states], ..response };
    let (request, reply) = ("HealthCheckRequest", "HealthCheckResponse");
    proto(HEALTH, "grpc.health.v1", &[])
        .with_message(message("HealthCheckRequest", &[field("service", 1, Kind::Text)]))
        .with_message(response)
        .with_service(
            "Health",
            &[("Check", request, reply, [false; 2]), ("Watch", request, reply, [false, true])],
        )
}

fn reflection(name: &str, package: &str) -> FileDescriptorProto {
    let (request, response) = ("ServerReflectionRequest", "ServerReflectionResponse");
    proto(name, package, &[])
        .with_message(message(request, &[field("host", 1, Kind::Text)]))
        .with_message(message(response, &[field("valid_host", 1, Kind::Text)]))
        .with_service("ServerReflection", &[("ServerReflectionInfo", request, response, [true; 2])])
}

/// The type of a field.
#[derive(Clone, Copy)]
enum Kind<'n> {
    Text,
    Bytes,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Message(&'n str),
    Enum(&'n str),
}

fn field(name: &str, number: i32, kind: Kind<'_>) -> FieldDescriptorProto {
    let (kind, type_name) = match kind {
        Kind::Text => (Type::String, None),
        Kind::Bytes => (Type::Bytes, None),
        Kind::Int32 => (Type::Int32, None),
        Kind::Int64 => (Type::Int64, None),
        Kind::Uint32 => (Type::Uint32, None),
        Kind::Uint64 => (Type::Uint64, None),
        Kind::Message(name) => (Type::Message, Some(name)),
        Kind::Enum(name) => (Type::Enum, Some(name)),
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        type_name: type_name.map(str::to_owned),
        ..FieldDescriptorProto::default()
    }
}

fn list(name: &str, number: i32, message: &str) -> FieldDescriptorProto {
    FieldDescriptorProto {
        label: Some(Label::Repeated.into()),
        ..field(name, number, Kind::Message(message))
    }
}

fn message(name: &str, fields: &[FieldDescriptorProto]) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field: fields.to_vec(), ..DescriptorProto::default() }
}

fn enumeration(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = |(number, name): (i32, &&str)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(number),
        options: None,
    };
    let value = (0..).zip(values).map(value).collect();
    EnumDescriptorProto { name: Some(name.to_owned()), value, ..EnumDescriptorProto::default() }
}

fn proto(name: &str, package: &str, imports: &[&str]) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|import| (*import).to_owned()).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

/// A method: its name, its messages, and whether the client and the server send several of them.
type MethodShape<'n> = (&'n str, &'n str, &'n str, [bool; 2]);

/// Adds definitions to a file.
trait FileDefinitions {
    fn with_message(self, message: DescriptorProto) -> Self;
    fn with_enum(self, enumeration: EnumDescriptorProto) -> Self;
    fn with_service(self, name: &str, methods: &[MethodShape<'_>]) -> Self;
}

impl FileDefinitions for FileDescriptorProto {
    fn with_message(mut self, message: DescriptorProto) -> Self {
        self.message_type.push(message);
        self
    }

    fn with_enum(mut self, enumeration: EnumDescriptorProto) -> Self {
        self.enum_type.push(enumeration);
        self
    }

    fn with_service(mut self, name: &str, methods: &[MethodShape<'_>]) -> Self {
        let package = self.package().to_owned();
        let method = |(name, request, response, [client, server]): &MethodShape<'_>| MethodDescriptorProto {
            name: Some((*name).to_owned()),
            input_type: Some(format!(".{package}.{request}")),
            output_type: Some(format!(".{package}.{response}")),
            client_streaming: Some(*client),
            server_streaming: Some(*server),
            options: None,
        };
        let method = methods.iter().map(method).collect();
        self.service.push(ServiceDescriptorProto { name: Some(name.to_owned()), method, options: None });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str, messages: &[DescriptorProto], all: &mut Vec<String>) {
        for message in messages {
            let name = format!("{prefix}.{}", message.name());
            names(&name, &message.nested_type, all);
            all.extend(message.enum_type.iter().map(|enumeration| format!("{name}.{}", enumeration.name())));
            all.push(name);
        }
    }

    fn used(messages: &[DescriptorProto]) -> Vec<String> {
        let own =
            messages.iter().flat_map(|message| &message.field).filter_map(|field| field.type_name.clone());
        let own: Vec<_> = own.collect();
        let nested = messages.iter().flat_map(|message| used(&message.nested_type));
        own.into_iter().chain(nested).collect()
    }

    #[test]
    fn schema_every_type_is_defined_in_the_file_or_its_imports() {
        for name in FILES {
            let file = file(name).expect("a file");
            let mut defined = Vec::new();
            for file in imports_of(&file).iter().chain([&file]) {
                let package = format!(".{}", file.package());
                names(&package, &file.message_type, &mut defined);
                defined.extend(file.enum_type.iter().map(|one| format!("{package}.{}", one.name())));
            }
            let methods = file.service.iter().flat_map(|service| &service.method);
            let methods =
                methods.flat_map(|method| [method.input_type().to_owned(), method.output_type().to_owned()]);
            for used in used(&file.message_type).into_iter().chain(methods) {
                assert!(defined.contains(&used), "{name}: {used}");
            }
        }
    }

    #[test]
    fn schema_symbol_is_found_in_its_file() {
        for service in SERVICES {
            assert!(file_of(service).is_some(), "{service}");
        }
        let method = "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit";
        assert_eq!(file_of(method).map(|file| file.name().to_owned()).as_deref(), Some(RLS));
        assert!(file_of("envoy.service.ratelimit.v3.RateLimitServiceX").is_none());
    }
}
