//! The part of the table for `service`.

use super::Shape::{Either, List, Object, Text};
use super::names::{FILE, NETWORK};
use super::{Mapping, PolicyKey};

pub(crate) static SERVICE: Mapping = Mapping {
    name: "`service`",
    path: "service",
    doc: "The decision service: other proxies and programs ask it whether a request may pass. It uses the same rules and counters as the gateway. A policy without `routes` serves decisions only. See docs/integrations.md.",
    keys: &[
        PolicyKey::new(
            "grpc",
            Either(&[Text("address"), Object(&SERVICE_LISTENER)]),
            "Envoy's rate limit service (RLS v3) over gRPC.",
            "127.0.0.1:8081",
        ),
        PolicyKey::new(
            "http",
            Either(&[Text("address"), Object(&SERVICE_LISTENER)]),
            "Checks over HTTP, and `/v1/authorize` for nginx, Traefik, Caddy and HAProxy.",
            "127.0.0.1:8082",
        ),
        PolicyKey::new(
            "resp",
            Either(&[Text("address"), Object(&SERVICE_LISTENER)]),
            "The Redis protocol: `CL.THROTTLE` and `TIDEGATE.CHECK`.",
            "127.0.0.1:6380",
        ),
        PolicyKey::new(
            "trusted_peers",
            List(&NETWORK),
            "Proxies whose requests to `/v1/authorize` state the method, URI and client address of the original request. Other peers get 403.",
            "[10.0.0.0/8]",
        )
        .default("loopback addresses"),
    ],
};

pub(crate) static SERVICE_LISTENER: Mapping = Mapping {
    name: "a listener of the decision service",
    path: "service.PROTOCOL",
    doc: "A listener. An address that is not loopback requires a `token_file`, or `tls` with `client_ca`.",
    keys: &[
        PolicyKey::new("address", Text("address"), "Host and port.", "0.0.0.0:8082").required(),
        PolicyKey::new(
            "tls",
            Object(&SERVICE_TLS),
            "The certificate. Without it, connections are not encrypted.",
            "{ cert: cert.pem, key: key.pem }",
        ),
        PolicyKey::new(
            "token_file",
            FILE,
            "The file with the token that clients need: over HTTP and gRPC as `Authorization: Bearer TOKEN`, over the Redis protocol as the password of `AUTH`.",
            "service.token",
        ),
    ],
};

pub(crate) static SERVICE_TLS: Mapping = Mapping {
    name: "`tls`",
    path: "service.PROTOCOL.tls",
    doc: "A certificate and its private key, both in PEM format.",
    keys: &[
        PolicyKey::new(
            "cert",
            FILE,
            "The certificate, followed by its intermediate certificates.",
            "cert.pem",
        )
        .required(),
        PolicyKey::new("key", FILE, "The private key of the certificate.", "key.pem").required(),
        PolicyKey::new(
            "client_ca",
            FILE,
            "Clients need a certificate of one of these authorities.",
            "clients.pem",
        ),
    ],
};
