//! The part of the table for `service`.

use super::Shape::{Either, List, Object, Text};
use super::names::{FILE, NETWORK};

mappings! {
    /// The decision service: other proxies and programs ask it whether a request may pass. It uses the same rules and counters as
    /// the gateway. A policy without `routes` serves decisions only. See docs/integrations.md.
    SERVICE: "`service`" at "service" {
        /// Envoy's rate limit service (RLS v3) over gRPC.
        grpc: Either(&[Text("address"), Object(&SERVICE_LISTENER)]), example "127.0.0.1:8081";
        /// Checks over HTTP, and `/v1/authorize` for nginx, Traefik, Caddy and HAProxy.
        http: Either(&[Text("address"), Object(&SERVICE_LISTENER)]), example "127.0.0.1:8082";
        /// The Redis protocol: `CL.THROTTLE` and `TIDEGATE.CHECK`.
        resp: Either(&[Text("address"), Object(&SERVICE_LISTENER)]), example "127.0.0.1:6380";
        /// Proxies whose requests to `/v1/authorize` state the method, URI and client address of the original request. Other
        /// peers get 403.
        trusted_peers: List(&NETWORK), example "[10.0.0.0/8]", default "loopback addresses";
    }

    /// A listener. An address that is not loopback requires a `token_file`, or `tls` with `client_ca`.
    SERVICE_LISTENER: "a listener of the decision service" at "service.PROTOCOL" {
        /// Host and port.
        address: Text("address"), example "0.0.0.0:8082", required;
        /// The certificate. Without it, connections are not encrypted.
        tls: Object(&SERVICE_TLS), example "{ cert: cert.pem, key: key.pem }";
        /// The file with the token that clients need: over HTTP and gRPC as `Authorization: Bearer TOKEN`, over the Redis
        /// protocol as the password of `AUTH`.
        token_file: FILE, example "service.token";
    }

    /// A certificate and its private key, both in PEM format.
    SERVICE_TLS: "`tls`" at "service.PROTOCOL.tls" {
        /// The certificate, followed by its intermediate certificates.
        cert: FILE, example "cert.pem", required;
        /// The private key of the certificate.
        key: FILE, example "key.pem", required;
        /// Clients need a certificate of one of these authorities.
        client_ca: FILE, example "clients.pem";
    }
}
