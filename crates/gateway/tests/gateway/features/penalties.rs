//! Clients that are rejected repeatedly are locked out for longer and longer, and the record decays in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::ManualClock;
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::{HttpServer, full};

use crate::fixture::{ResourceLimits, TestGateway, active};

const LOGIN: &str = "
clients:
  identify_by: [ip]
  user: { header: X-Login-Name }
  ip: { trusted_proxies: [127.0.0.1] }
rate_limits:
  rules:
    - name: login
      match: { method: POST, path: /login }
      per_each: [ip, user, fingerprint]
      requests: 2
      window: 10s
      algorithm: sliding_window_log
      penalty: { after: 2, for: 1m, doubling_to: 4m }
";

/// A login page behind a gateway, a manual clock, and a script that changes its browser with every guess.
struct Setup {
    clock: Arc<ManualClock>,
    gateway: TestGateway,
    attempts: Arc<AtomicUsize>,
    browsers: AtomicUsize,
    upstream: HttpServer,
}

impl Setup {
    async fn new(rest: &str) -> Self {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&attempts);
        let upstream = HttpServer::start(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Response::builder().status(401).body(full("wrong")).unwrap() }
        })
        .await;
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
        let gateway = TestGateway::with_clock(
            clock.clone(),
            active(&[upstream.url()], rest, &[]),
            ResourceLimits::default(),
        );
        Self { clock, gateway, attempts, browsers: AtomicUsize::new(0), upstream }
    }

    async fn log_in(&self, address: &str, user: &str, browser: &str) -> CollectedResponse {
        let request = Request::post("/login")
            .header("host", "test")
            .header("x-forwarded-for", address)
            .header("x-login-name", user)
            .header("user-agent", browser)
            .body(Empty::<Bytes>::new());
        self.gateway.send(request.unwrap()).await
    }

    /// Sends one guess of the script, with a new browser.
    async fn guess(&self, user: &str) -> CollectedResponse {
        let browser = format!("browser/{}", self.browsers.fetch_add(1, Ordering::SeqCst));
        self.log_in("203.0.113.66", user, &browser).await
    }

    /// Guesses until the script is locked out. Returns the seconds of the lock-out.
    async fn guess_until_locked_out(&self) -> u64 {
        for n in 0..10 {
            let response = self.guess(&format!("user-{n}")).await;
            if response.status == 429 && response.json()["error"] == "locked_out" {
                return response.number("retry-after");
            }
        }
        panic!("ten guesses in a second and no lock-out");
    }

    async fn guess_until_locked_out_in(&self, code: &str) {
        for _ in 0..3 {
            self.guess("ann").await;
        }
        let response = self.guess("ann").await;
        let body = response.json();
        let kind = body.pointer(code).and_then(|code| code.as_str()).unwrap_or_default().to_lowercase();
        assert!(kind == "locked_out" || kind.ends_with("#abnormal-usage-detected"), "{body}");
        assert_about(response.number("retry-after"), 60);
        let retry_after = format!("\"retry_after\":{}", response.number("retry-after"));
        assert!(body.to_string().contains(&retry_after) && body.to_string().contains("\"login\""), "{body}");
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(TimeSpan::from_secs(seconds));
    }
}

/// Asserts that a wait is never too short and at most a tenth too long.
#[track_caller]
fn assert_about(retry_after: u64, seconds: u64) {
    assert!((seconds..=seconds + seconds / 10).contains(&retry_after), "{retry_after} for {seconds}");
}

#[tokio::test]
async fn lock_out_of_a_script_with_changing_browsers_spares_the_real_user() {
    let setup = Setup::new(LOGIN).await;
    let statuses = [
        setup.guess("ann").await,
        setup.guess("bob").await,
        setup.guess("eve").await,
        setup.guess("dan").await,
    ];
    assert_eq!(statuses.each_ref().map(|response| response.status.as_u16()), [401, 401, 429, 429]);
    let [.., rejected, locked_out] = &statuses;
    assert_eq!(rejected.json()["error"], "rate_limit_exceeded");
    let body = locked_out.json();
    assert_eq!((&body["error"], &body["rule"]), (&"locked_out".into(), &"login".into()));
    assert_about(locked_out.number("retry-after"), 60);
    assert_eq!(body["retry_after"], locked_out.number("retry-after"));
    assert_eq!(locked_out.number("x-ratelimit-retry-after"), locked_out.number("retry-after"));
    // The limit would admit it again, but the lock-out applies: nothing is forwarded or charged.
    setup.advance(30);
    for _ in 0..5 {
        assert_about(setup.guess("ann").await.number("retry-after"), 30);
    }
    assert_eq!(setup.attempts.load(Ordering::SeqCst), 2);
    // The real user is named in the guesses, but uses another address.
    let ann = setup.log_in("198.51.100.7", "ann", "firefox").await;
    assert_eq!(ann.status, 401, "the real user is admitted");
    setup.advance(30);
    assert_eq!(setup.guess("ann").await.status, 401);
    assert_eq!(setup.guess("bob").await.status, 401, "the whole limit is available again");
}

#[tokio::test]
async fn lock_outs_double_up_to_the_maximum_and_decay_step_by_step() {
    let setup = Setup::new(LOGIN).await;
    for seconds in [60, 120, 240, 240] {
        assert_about(setup.guess_until_locked_out().await, seconds);
        setup.advance(seconds);
    }
    // One doubling decays in the time that the last lock-out lasted.
    setup.advance(239);
    assert_about(setup.guess_until_locked_out().await, 240);
    setup.advance(240 + 240 + 120);
    assert_about(setup.guess_until_locked_out().await, 120);
    setup.advance(120 + 120 + 60);
    // The record has decayed completely.
    assert_about(setup.guess_until_locked_out().await, 60);
}

#[tokio::test]
async fn lock_out_never_follows_an_account_or_a_browser_that_a_stranger_can_use() {
    let setup = Setup::new(LOGIN).await;
    for n in 0..8 {
        setup.log_in(&format!("203.0.113.{n}"), "ann", "firefox").await;
    }
    // The account and the browser are limited, although no address is.
    for (user, browser) in [("ann", "chrome"), ("bob", "firefox")] {
        let response = setup.log_in("203.0.113.99", user, browser).await;
        assert_eq!(response.json()["error"], "rate_limit_exceeded", "{user}, {browser}");
    }
    assert!(setup.gateway.penalties().is_empty());
    setup.advance(11);
    assert_eq!(setup.log_in("198.51.100.7", "ann", "firefox").await.status, 401);
}

#[tokio::test]
async fn lock_out_is_reported_in_every_body_style_and_applies_to_its_rule_only() {
    for (style, code) in [("flat", "/error"), ("nested", "/error/code"), ("problem", "/type")] {
        let setup = Setup::new(&format!("error_body: {style}{LOGIN}")).await;
        setup.guess_until_locked_out_in(code).await;
        let elsewhere = setup.gateway.get_with("/", &[("x-forwarded-for", "203.0.113.66")]).await;
        assert_eq!(elsewhere.status, 401, "the rule applies to the login only");
    }
}

#[tokio::test]
async fn lock_out_never_happens_in_shadow_mode_and_survives_a_reload() {
    let shadow = LOGIN.replace("penalty:", "mode: shadow\n      penalty:");
    let setup = Setup::new(&shadow).await;
    for _ in 0..10 {
        assert_eq!(setup.guess("ann").await.status, 401);
    }
    assert!(setup.gateway.penalties().is_empty());
    let setup = Setup::new(LOGIN).await;
    setup.guess_until_locked_out().await;
    let looser = LOGIN.replace("requests: 2", "requests: 200");
    setup.gateway.replace(&[setup.upstream.url()], &looser);
    assert_eq!(setup.guess("ann").await.json()["error"], "locked_out");
    let locked_out = setup.gateway.penalties().locked_out(Timestamp::from_secs(1_800_000_000));
    assert_eq!(locked_out.len(), 1, "the address");
    assert!(setup.gateway.penalties().remove(locked_out[0].key.as_key()));
    assert_eq!(setup.guess("ann").await.status, 401, "an operator has lifted the lock-out");
}
