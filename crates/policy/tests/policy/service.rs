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

#[test]
fn address_of_two_listeners_is_reported_with_both_keys() {
    let routes =
        "upstreams: { api: { servers: [http://127.0.0.1:3000] } }\nroutes: [{ path: /**, upstream: api }]";
    let problem = |policy: &str| plan(policy, ServiceAddresses::default()).unwrap_err();
    let both = problem("service: { http: 127.0.0.1:8082, grpc: 'localhost:8082' }");
    assert!(both.contains("`service.http` has the address of `service.grpc`: `127.0.0.1:8082`"), "{both}");
    let gateway =
        problem(&format!("listen: '[::1]:80'\nservice: {{ resp: {{ address: '[0:0::1]:80' }} }}\n{routes}"));
    assert!(gateway.contains("`service.resp` has the address of `listen`: `[0:0::1]:80`"), "{gateway}");
    let admin = problem("admin: { listen: 127.0.0.1:6380 }\nservice: { resp: 127.0.0.1:6380 }");
    assert!(admin.contains("`service.resp` has the address of `admin.listen`"), "{admin}");
    let default = problem("service: { resp: 127.0.0.1:9900 }");
    assert!(default.contains("`service.resp` has the address of `admin.listen` (its default)"), "{default}");
    let listen = problem(&format!("service: {{ http: 127.0.0.1:8080 }}\n{routes}"));
    assert!(listen.contains("`service.http` has the address of `listen` (its default)"), "{listen}");
}

#[test]
fn addresses_that_differ_or_are_not_used_are_valid() {
    let valid = |policy: &str| plan(policy, ServiceAddresses::default()).unwrap();
    valid("admin: off\nservice: { resp: 127.0.0.1:9900, http: 127.0.0.2:9900, grpc: '[::1]:9900' }");
    valid("service: { resp: 127.0.0.1:0, http: 127.0.0.1:0 }");
    valid("service: { http: 127.0.0.1:8080 }");
    let policy = b"service: { http: 127.0.0.1:8080 }\nlisten: 127.0.0.1:8080";
    let options = CompileOptions { has_listeners: true, ..CompileOptions::default() };
    assert!(
        compile_with("policy.yaml", policy, &NoFiles, options).is_ok(),
        "another address replaces `listen`"
    );
    let service = ServiceAddresses { http: Some("127.0.0.1:6380"), ..ServiceAddresses::default() };
    let problem = plan("service: { resp: 127.0.0.1:6380 }", service).unwrap_err();
    assert!(problem.contains("`service.resp` has the address of `service.http`"), "{problem}");
}
