//! One limit through all protocols.

use std::process::Command;

use tidegate_testkit::client::{get, request};
use tidegate_testkit::folder::Folder;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{PolicyFile, Tidegate};
use tidegate_testkit::server::echo;

use crate::program::command;

/// Field `number` of a message with `bytes` as its value.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap();
    [&[number << 3 | 2, length], bytes].concat()
}

/// A gRPC frame with a call about the client 127.0.0.1 under the rule `default`.
fn rate_limit_call() -> Vec<u8> {
    let entry =
        |key: &str, value: &str| field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let descriptor = [entry("rule", "default"), entry("client", "ip:127.0.0.1")].concat();
    let message = [field(1, b"tidegate"), field(2, &descriptor)].concat();
    [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &*message].concat()
}

#[test]
fn limit_asked_through_all_protocols_admits_exactly_its_requests() {
    let [gateway, grpc, http, resp] = [(); 4].map(|()| free_address().to_string());
    let policy = PolicyFile::new(&format!(
        "admin: off\nlisten: '{gateway}'\nservice: {{ grpc: '{grpc}', http: '{http}', resp: '{resp}' }}\n\
         upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         rate_limits: {{ default: {{ requests: 10, window: 1h }} }}\n",
        echo()
    ));
    let _server = Tidegate::start(command().args(["serve", "--config", &policy.path()]));
    let folder = Folder::new();
    folder.write("call", rate_limit_call());

    let through_gateway = || get(&*gateway, "").status == 200;
    let through_http = || {
        let body = r#"{"rule":"default","client":"ip:127.0.0.1"}"#;
        let answer = request(&http, "POST", "/v1/check", "Content-Type: application/json\r\n", body);
        assert_eq!(answer.status, 200);
        answer.body.windows(15).any(|text| text == br#""admitted":true"#)
    };
    let through_grpc = || {
        let url = format!("http://{grpc}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let data = format!("@{}", folder.path("call").display());
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "--http2-prior-knowledge",
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
        ]);
        let answer = curl.args(["--data-binary", &data, &url]).output().unwrap().stdout;
        // The frame is followed by `overall_code`: OK is 1, OVER_LIMIT is 2.
        match answer.get(5..7) {
            Some([8, 1]) => true,
            Some([8, 2]) => false,
            _ => panic!("{answer:?}"),
        }
    };
    let through_resp = || {
        let port = resp.rsplit(':').next().unwrap();
        let mut cli = Command::new("redis-cli");
        let answer =
            cli.args(["-p", port, "TIDEGATE.CHECK", "default", "ip:127.0.0.1"]).output().unwrap().stdout;
        match answer.first() {
            Some(b'1') => true,
            Some(b'0') => false,
            _ => panic!("{}", String::from_utf8_lossy(&answer)),
        }
    };

    let protocols: [&dyn Fn() -> bool; 4] = [&through_gateway, &through_http, &through_grpc, &through_resp];
    let admitted: Vec<_> = (0..20).map(|n| protocols[n % 4]()).collect();
    assert_eq!(admitted, [[true; 10], [false; 10]].concat());
}
