//! What `diagnose` finds on real servers.

use tidegate_redis::{Diagnosis, DiagnosisLevel, Endpoint, RedisConfig, diagnose};
use tidegate_store::SystemClock;
use tidegate_testkit::certificate::Certificate;
use tidegate_testkit::process::{RedisCluster, RedisOptions, RedisServer};

async fn examine(url: &str) -> Diagnosis {
    let diagnosis = diagnose(&RedisConfig::new(Endpoint::parse(url).unwrap()), &SystemClock::new()).await;
    for item in &diagnosis.items {
        println!("{:<8} {:<12} {}", item.level, item.subject, item.message);
    }
    diagnosis
}

fn server(arguments: &[&str]) -> RedisServer {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    RedisServer::with(&RedisOptions { arguments, ..RedisOptions::default() })
}

/// The level and the message of the last finding about `subject`.
fn finding<'a>(diagnosis: &'a Diagnosis, subject: &str) -> (DiagnosisLevel, &'a str) {
    let item = diagnosis.items.iter().rfind(|item| item.subject == subject).unwrap();
    (item.level, &item.message)
}

fn level(diagnosis: &Diagnosis, subject: &str) -> DiagnosisLevel {
    finding(diagnosis, subject).0
}

#[tokio::test]
async fn server_that_keeps_its_data_has_no_problem() {
    let server = server(&["--appendonly", "yes", "--maxmemory", "100mb"]);
    let diagnosis = examine(&server.url()).await;
    for subject in ["version", "persistence", "eviction", "clock", "permissions"] {
        assert_eq!(level(&diagnosis, subject), DiagnosisLevel::Ok, "{subject}");
    }
    assert_eq!(level(&diagnosis, "role"), DiagnosisLevel::Advice, "no replica");
}

#[tokio::test]
async fn server_that_evicts_keys_is_a_problem() {
    let server = server(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let diagnosis = examine(&server.url()).await;
    assert!(diagnosis.has_problems());
    let (level, message) = finding(&diagnosis, "eviction");
    assert_eq!(level, DiagnosisLevel::Problem);
    assert!(message.contains("set it to `noeviction`"), "{message}");
    assert_eq!(self::level(&diagnosis, "persistence"), DiagnosisLevel::Advice);
}

#[tokio::test]
async fn user_without_permissions_is_told_which_rules_to_add() {
    let user = ("gate".to_owned(), "secret".to_owned(), "~tg:* resetchannels +@all -evalsha".to_owned());
    let server = RedisServer::with(&RedisOptions { user: Some(user), ..RedisOptions::default() });
    let diagnosis = examine(&server.url()).await;
    let problems: Vec<_> = diagnosis
        .items
        .iter()
        .filter(|item| item.level == DiagnosisLevel::Problem)
        .map(|item| &item.message)
        .collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("+evalsha") && problems[1].contains("&tg:*"), "{problems:?}");
    let wrong = examine(&server.url().replace("secret", "guess")).await;
    assert!(finding(&wrong, "connection").1.contains("check the user and the password"));
}

#[tokio::test]
async fn absent_server_and_wrong_scheme_are_problems() {
    let absent = examine("redis://127.0.0.1:1").await;
    assert_eq!(level(&absent, "connection"), DiagnosisLevel::Problem);
    let cluster = RedisCluster::start();
    let single = examine(&format!("redis://{}", cluster.nodes[0].address())).await;
    assert!(finding(&single, "role").1.contains("redis-cluster://"));
    let replica = examine(&format!("redis://{}", cluster.nodes[3].address())).await;
    assert!(finding(&replica, "role").1.contains("it is a replica"));
    let whole = examine(&cluster.url()).await;
    assert_eq!(level(&whole, "hash slots"), DiagnosisLevel::Ok);
    assert_eq!((level(&whole, "cluster"), level(&whole, "role")), (DiagnosisLevel::Ok, DiagnosisLevel::Ok));
}

/// The only finding: nothing else is examined.
async fn only_problem(url: &str) -> String {
    let diagnosis = examine(url).await;
    assert_eq!(diagnosis.items.len(), 1, "{diagnosis:?}");
    let (level, message) = finding(&diagnosis, "connection");
    assert_eq!(level, DiagnosisLevel::Problem);
    message.to_owned()
}

#[tokio::test]
async fn server_that_cannot_be_used_is_one_problem_with_its_cause() {
    let locked = server(&["--requirepass", "secret"]);
    let message = only_problem(&format!("redis://{}", locked.address())).await;
    assert!(message.contains("needs a login") && message.contains("--password-file"), "{message}");
    let plain = RedisServer::start();
    let message = only_problem(&plain.url().replace("redis://", "rediss://")).await;
    assert!(message.contains("write `redis` instead of `rediss`"), "{message}");
    plain.stop();
    let message = only_problem(&plain.url()).await;
    plain.resume();
    assert!(message.contains("does not respond"), "{message}");
}

#[tokio::test]
async fn server_that_expects_tls_is_recognised() {
    let certificate = Certificate::for_name("127.0.0.1");
    let server = RedisServer::with(&RedisOptions { tls: Some(certificate), ..RedisOptions::default() });
    let message = only_problem(&format!("redis://{}", server.address())).await;
    assert!(message.contains("write `rediss` instead of `redis`"), "{message}");
}
