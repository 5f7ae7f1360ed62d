//! `service`: the listeners of the decision service.

use tidegate_policy::{CompileOptions, NoFiles, Plan, ServiceAddresses, compile_with};

fn plan(policy: &str, service: ServiceAddresses<'_>) -> Result<Plan, String> {
    let options = CompileOptions { service, ..CompileOptions::default() };
    let compiled = compile_with("policy.yaml", policy.as_bytes(), &NoFiles, options);
    compiled.map(|compiled| compiled.plan).map_err(|problems| problems.to_string())
}

fn addresses(plan: &Plan) -> Vec<(&str, &str)> {
    plan.service.listeners().map(|(key, listener)| (key, listener.address.as_str())).collect()
}

#[test]
fn service_without_routes_serves_no_gateway() {
    let alone = plan("service: { resp: 127.0.0.1:6380 }", ServiceAddresses::default()).unwrap();
    assert!(alone.listen.is_empty());
    assert_eq!(addresses(&alone), [("resp", "127.0.0.1:6380")]);
    let routed = "service: { resp: 127.0.0.1:6380 }\n\
                  upstreams: { api: { servers: [http://127.0.0.1:3000] } }\nroutes: [{ path: /**, upstream: api }]";
    assert_eq!(plan(routed, ServiceAddresses::default()).unwrap().listen.len(), 1);
}

#[test]
fn service_address_option_replaces_or_adds_a_listener() {
    let policy = "service: { resp: 127.0.0.1:6380, http: { address: 127.0.0.1:8082 } }";
    let options = ServiceAddresses { resp: Some("127.0.0.1:1"), grpc: Some("localhost:2"), http: None };
    let plan = plan(policy, options).unwrap();
    assert_eq!(
        addresses(&plan),
        [("grpc", "localhost:2"), ("http", "127.0.0.1:8082"), ("resp", "127.0.0.1:1")]
    );
}

#[test]
fn service_address_option_that_other_machines_reach_needs_a_token() {
    let options = ServiceAddresses { resp: Some("0.0.0.0:6380"), ..ServiceAddresses::default() };
    let problems = plan("service: { resp: 127.0.0.1:6380 }", options).unwrap_err();
    assert!(problems.contains("`0.0.0.0:6380` is not a loopback address"), "{problems}");
}
