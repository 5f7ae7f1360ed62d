//! Calls over HTTP, as docs/integrations/grpc.md shows them.

use tidegate_telemetry::Protocol;
use tidegate_testkit::client::request;

use crate::fixture::TestService;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn json_call_of_the_documentation_gets_the_documented_response() {
    let read = |file: &str| std::fs::read_to_string(format!("{ROOT}/{file}")).expect("a file");
    let page = read("docs/integrations/grpc.md");
    let service = TestService::start_envoy(&read("examples/integrations/envoy/config/edge.yaml"));
    let post = |body: &str| {
        let address = service.address(Protocol::Http).to_string();
        request(&address, "POST", "/json", "Content-Type: application/json\r\n", body)
    };
    let (_, call) = page.split_once("-d '").expect("a call");
    let (call, _) = call.split_once('\'').expect("its end");
    let first = post(call);
    let (status, text) = (first.status, String::from_utf8_lossy(&first.body));
    let (response, _) = text.split_once(",\"responseHeadersToAdd\"").expect("headers");
    assert!(status == 200 && page.contains(&format!("\n{response}}}\n")), "{response}");
    for expected in [200, 200, 429] {
        assert_eq!(post(call).status, expected);
    }
    for invalid in ["{}", "{\"domain\": \"edge\", \"hitsAddend\": 4294967296}", "{\"other\": 1}"] {
        let response = post(invalid);
        assert_eq!((response.status, response.json()["error"].is_string()), (400, true), "{invalid}");
    }
}
