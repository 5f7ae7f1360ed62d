//! One limit through all protocols.

use tidegate_testkit::client::get;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{PolicyFile, Tidegate};
use tidegate_testkit::server::echo;

use super::protocols::{Answer, ServiceClient, ServiceProtocol};
use crate::program::command;

#[test]
fn limit_asked_through_all_protocols_admits_exactly_its_requests() {
    let (gateway, service) = (free_address().to_string(), ServiceClient::new());
    let policy = PolicyFile::new(&format!(
        "admin: off\nlisten: '{gateway}'\n{}\
         upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         rate_limits: {{ default: {{ requests: 10, window: 1h }} }}\n",
        service.policy_key(),
        echo()
    ));
    let _server = Tidegate::start(command().args(["serve", "--config", &policy.path()]));
    let ask = |number: usize| match ServiceProtocol::ALL.get(number % 4) {
        Some(protocol) => service.check(*protocol, "default", "ip:127.0.0.1") == Answer::Admitted,
        None => get(&*gateway, "").status == 200,
    };
    let admitted: Vec<_> = (0..20).map(ask).collect();
    assert_eq!(admitted, [[true; 10], [false; 10]].concat());
}
