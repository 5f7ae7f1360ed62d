//! Who is refused again and again is locked out, for longer and longer, and forgotten in the end.

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

/// A login page, a gateway before it, a clock that moves as it is told, and a script that rotates its browser.
struct Scene {
    clock: Arc<ManualClock>,
    proxy: TestGateway,
    tries: Arc<AtomicUsize>,
    browsers: AtomicUsize,
    upstream: HttpServer,
}

impl Scene {
    async fn of(rest: &str) -> Self {
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let upstream = HttpServer::start(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Response::builder().status(401).body(full("wrong")).unwrap() }
        })
        .await;
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
        let proxy = TestGateway::with_clock(
            clock.clone(),
            active(&[upstream.url()], rest, &[]),
            ResourceLimits::default(),
        );
        Self { clock, proxy, tries, browsers: AtomicUsize::new(0), upstream }
    }

    async fn log_in(&self, address: &str, user: &str, browser: &str) -> CollectedResponse {
        let request = Request::post("/login")
            .header("host", "test")
            .header("x-forwarded-for", address)
            .header("x-login-name", user)
            .header("user-agent", browser)
            .body(Empty::<Bytes>::new());
        self.proxy.send(request.unwrap()).await
    }

    /// One more guess of the script: another browser each time.
    async fn guess(&self, user: &str) -> CollectedResponse {
        let browser = format!("browser/{}", self.browsers.fetch_add(1, Ordering::SeqCst));
        self.log_in("203.0.113.66", user, &browser).await
    }

    /// Guesses until it is locked out; how long that is.
    async fn guess_until_locked_out(&self) -> u64 {
        for n in 0..10 {
            let answer = self.guess(&format!("user-{n}")).await;
            if answer.status == 429 && answer.json()["error"] == "locked_out" {
                return answer.number("retry-after");
            }
        }
        panic!("ten guesses in a second and no lock-out");
    }

    async fn guess_until_locked_out_in(&self, code: &str) {
        for _ in 0..3 {
            self.guess("ann").await;
        }
        let answer = self.guess("ann").await;
        let body = answer.json();
        let kind = body.pointer(code).and_then(|code| code.as_str()).unwrap_or_default().to_lowercase();
        assert!(kind == "locked_out" || kind.ends_with("#abnormal-usage-detected"), "{body}");
        assert_about(answer.number("retry-after"), 60);
        let retry_after = format!("\"retry_after\":{}", answer.number("retry-after"));
        assert!(body.to_string().contains(&retry_after) && body.to_string().contains("\"login\""), "{body}");
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(TimeSpan::from_secs(seconds));
    }
}

/// Never early, and at most a tenth late.
#[track_caller]
fn assert_about(retry_after: u64, seconds: u64) {
    assert!((seconds..=seconds + seconds / 10).contains(&retry_after), "{retry_after} for {seconds}");
}

#[tokio::test]
async fn a_script_that_rotates_its_browser_is_locked_out_and_the_real_user_is_not() {
    let scene = Scene::of(LOGIN).await;
    let statuses = [
        scene.guess("ann").await,
        scene.guess("bob").await,
        scene.guess("eve").await,
        scene.guess("dan").await,
    ];
    assert_eq!(statuses.each_ref().map(|answer| answer.status.as_u16()), [401, 401, 429, 429]);
    let [.., refused, locked] = &statuses;
    assert_eq!(refused.json()["error"], "rate_limit_exceeded");
    let body = locked.json();
    assert_eq!((&body["error"], &body["rule"]), (&"locked_out".into(), &"login".into()));
    assert_about(locked.number("retry-after"), 60);
    assert_eq!(body["retry_after"], locked.number("retry-after"));
    assert_eq!(locked.number("x-ratelimit-retry-after"), locked.number("retry-after"));
    // Its limit has room again, but it is locked out: nothing is forwarded and nothing charged.
    scene.pass(30);
    for _ in 0..5 {
        assert_about(scene.guess("ann").await.number("retry-after"), 30);
    }
    assert_eq!(scene.tries.load(Ordering::SeqCst), 2);
    // She is named in the guesses, and uses another address.
    let ann = scene.log_in("198.51.100.7", "ann", "firefox").await;
    assert_eq!(ann.status, 401, "she is heard");
    scene.pass(30);
    assert_eq!(scene.guess("ann").await.status, 401);
    assert_eq!(scene.guess("bob").await.status, 401, "all of the limit was there");
}

#[tokio::test]
async fn lock_outs_double_up_to_the_cap_and_are_forgotten_step_by_step() {
    let scene = Scene::of(LOGIN).await;
    for seconds in [60, 120, 240, 240] {
        assert_about(scene.guess_until_locked_out().await, seconds);
        scene.pass(seconds);
    }
    // As long as the last lock-out lasted takes back one doubling.
    scene.pass(239);
    assert_about(scene.guess_until_locked_out().await, 240);
    scene.pass(240 + 240 + 120);
    assert_about(scene.guess_until_locked_out().await, 120);
    scene.pass(120 + 120 + 60);
    // As if it had never been seen.
    assert_about(scene.guess_until_locked_out().await, 60);
}

#[tokio::test]
async fn each_dimension_has_a_lock_out_of_its_own() {
    let scene = Scene::of(LOGIN).await;
    for n in 0..4 {
        scene.log_in(&format!("203.0.113.{n}"), "ann", &format!("browser/{n}")).await;
    }
    // Many addresses and browsers, one account: it is the account that is locked.
    let answer = scene.log_in("203.0.113.99", "ann", "another").await;
    assert_eq!(answer.json()["error"], "locked_out");
    assert_eq!(scene.log_in("203.0.113.0", "bob", "browser/0").await.status, 401);
}

#[tokio::test]
async fn a_lock_out_is_told_in_every_body_and_of_one_rule_alone() {
    for (style, code) in [("flat", "/error"), ("nested", "/error/code"), ("problem", "/type")] {
        let scene = Scene::of(&format!("error_body: {style}{LOGIN}")).await;
        scene.guess_until_locked_out_in(code).await;
        let elsewhere = scene.proxy.get_with("/", &[("x-forwarded-for", "203.0.113.66")]).await;
        assert_eq!(elsewhere.status, 401, "the rule is about the login");
    }
}

#[tokio::test]
async fn a_shadow_locks_nobody_out_and_a_reload_keeps_lock_outs() {
    let shadow = LOGIN.replace("penalty:", "mode: shadow\n      penalty:");
    let scene = Scene::of(&shadow).await;
    for _ in 0..10 {
        assert_eq!(scene.guess("ann").await.status, 401);
    }
    assert!(scene.proxy.penalties().is_empty());
    let scene = Scene::of(LOGIN).await;
    scene.guess_until_locked_out().await;
    let looser = LOGIN.replace("requests: 2", "requests: 200");
    scene.proxy.replace(&[scene.upstream.url()], &looser);
    assert_eq!(scene.guess("ann").await.json()["error"], "locked_out");
    let locked = scene.proxy.penalties().locked_out(Timestamp::from_secs(1_800_000_000));
    assert_eq!(locked.len(), 1, "the address");
    assert!(scene.proxy.penalties().remove(locked[0].key.as_key()));
    assert_eq!(scene.guess("ann").await.status, 401, "an operator has let it go");
}
