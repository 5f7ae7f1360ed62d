//! The domains of an Envoy configuration, as operators see them.

use tidegate_testkit::client::request;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::Tidegate;

use crate::program;

#[test]
fn envoy_domains_are_announced_and_an_unknown_one_is_logged_once() {
    let folder = Folder::new();
    let limit = "rate_limit: { unit: minute, requests_per_unit: 5 }";
    folder.write("edge.yaml", format!("domain: edge\ndescriptors: [{{ key: user, {limit} }}]"));
    let config = folder.root().to_string_lossy().into_owned();
    let (grpc, http) = (free_address().to_string(), free_address().to_string());
    let args = ["serve", "--envoy-config", &config, "--grpc", &grpc, "--http", &http];
    let server = Tidegate::start(program::command().args(args));
    let banner = &server.startup_output;
    assert!(banner.contains("  limit      edge/user: 5 per minute\n"), "{banner}");
    let command = format!("# tidegate serve --config policy.yaml --envoy-config '{config}'\n");
    assert!(banner.contains(&command), "{banner}");

    let call = |domain: &str| {
        let body = format!(
            r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"user","value":"bob"}}]}}]}}"#
        );
        request(&http, "POST", "/json", "Content-Type: application/json\r\n", &body).status
    };
    assert_eq!([call("egde"), call("egde"), call("edge"), call("other")], [200; 4]);
    let line = server.wait_for_log("unknown_domain");
    assert!(line.contains("\"domain\":\"egde\"") && line.contains("known domains: edge"), "{line}");
    let next = server.wait_for_log("unknown_domain");
    assert!(next.contains("\"domain\":\"other\""), "only the first call is logged: {next}");
}
