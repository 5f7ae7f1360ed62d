//! Limits apply to every reading of a path.

use super::*;

/// The names of the rules that apply to a request for `path`.
fn rules(matcher: &Matcher, path: &str) -> Vec<String> {
    with_admission(matcher, &format!("GET {path}"), &[], |admission| match admission {
        Admission::Checked(matched_request) => {
            matched_request.rules().map(|rule| rule.name.clone()).collect()
        }
        other => panic!("{other:?}"),
    })
}

const POLICY: &str = "
rate_limits:
  rules:
    - { name: admin, match: { path: '/Admin/**' }, requests: 3, window: 1 }
    - { name: both, match: { path: [/login, /Login] }, requests: 3, window: 1 }
    - { name: exact, match: { path: /x, when: 'request.path == \"/x\"' }, requests: 3, window: 1 }
    - { name: public, match: { when: '!request.path.startsWith(\"/public\")' }, requests: 3, window: 1 }
    - { name: at-once, match: { path: /Login }, concurrent: 3 }
  endpoints:
    /login: { requests: 1, window: 1 }
    '/{any}': { requests: 2, window: 1 }
    /Search: { requests: 3, window: 1 }
    '/%C3%A9t%C3%A9': { requests: 3, window: 1 }
    /key: { requests: 3, window: 1 }
    /a/b: { requests: 3, window: 1 }
";

#[test]
fn path_behind_a_script_matches_the_limits_of_the_script() {
    let matcher = matcher(
        "
rate_limits:
  rules: [{ name: rule, match: { path: '/wp/Login.php' }, requests: 3, window: 1 }]
  endpoints:
    /wp/login.php: { requests: 1, window: 1 }
    /other.php: { requests: 1, window: 1 }
    /other.php/**: { requests: 2, window: 1 }
    /page.html: { requests: 1, window: 1 }
",
    );
    for path in ["/wp/login.php", "/wp/login.php/", "/wp/login.php/x", "/WP/login.PHP/x;y/z"] {
        assert_eq!(rules(&matcher, path), ["rule", "endpoint:/wp/login.php"], "{path}");
    }
    assert_eq!(rules(&matcher, "/other.php"), ["endpoint:/other.php"]);
    assert_eq!(rules(&matcher, "/other.php/x"), ["endpoint:/other.php/**"]);
    assert!(rules(&matcher, "/page.html/x").is_empty() && rules(&matcher, "/wp/login.phpx").is_empty());
}

#[test]
fn path_in_another_case_matches_each_limit_once() {
    let matcher = matcher(POLICY);
    for (path, expected) in [
        ("/login", vec!["both", "public", "endpoint:/login"]),
        ("/LOGIN", vec!["both", "public", "endpoint:/{any}", "endpoint:/login"]),
        ("/Login;v=1", vec!["both", "public", "endpoint:/{any}", "endpoint:/login"]),
        ("/search", vec!["public", "endpoint:/{any}", "endpoint:/Search"]),
        ("/Search", vec!["public", "endpoint:/Search"]),
        ("/admin/x", vec!["admin", "public"]),
        ("/ADMIN/x", vec!["admin", "public"]),
        ("/x", vec!["exact", "public", "endpoint:/{any}"]),
        ("/X;y", vec!["exact", "public", "endpoint:/{any}"]),
        ("/public", vec!["endpoint:/{any}"]),
        ("/PUBLIC", vec!["public", "endpoint:/{any}"]),
        ("/%C3%89t%C3%89", vec!["public", "endpoint:/{any}", "endpoint:/%C3%A9t%C3%A9"]),
        ("/%E2%84%AAEY", vec!["public", "endpoint:/{any}", "endpoint:/key"]),
        ("/unrelated/path", vec!["public"]),
    ] {
        assert_eq!(rules(&matcher, path), expected, "{path}");
    }
    let concurrency_checks = with_admission(&matcher, "GET /LOGIN;x", &[], |admission| match admission {
        Admission::Checked(matched_request) => {
            matched_request.concurrency_checks().map(|check| check.rule.name.clone()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(concurrency_checks, ["at-once"]);
}

#[test]
fn path_with_encoded_slash_matches_limits_of_both_readings() {
    let matcher = matcher(POLICY);
    for (path, expected) in [
        ("/a%2Fb", vec!["public", "endpoint:/{any}", "endpoint:/a/b"]),
        ("/A%5CB", vec!["public", "endpoint:/{any}", "endpoint:/a/b"]),
        ("/a/b%0A", vec!["public", "endpoint:/a/b"]),
        ("/x%2F..%2Flogin", vec!["both", "public", "endpoint:/{any}", "endpoint:/login"]),
        ("/public%2F..%2Fx", vec!["exact", "public", "endpoint:/{any}"]),
    ] {
        assert_eq!(rules(&matcher, path), expected, "{path}");
    }
}

#[test]
fn case_sensitive_limits_ignore_only_parameters() {
    let sensitive = |endpoint: &str| {
        matcher(&format!(
            "{{ http: {{ path_case: sensitive }}, rate_limits: {{ endpoints: {{ {endpoint} }} }} }}"
        ))
    };
    let matcher = sensitive("/a: { requests: 1, window: 1 }, /A: { requests: 1, window: 1 }");
    assert_eq!(rules(&matcher, "/a;x"), ["endpoint:/a"]);
    assert_eq!(rules(&matcher, "/A"), ["endpoint:/A"]);
    let matcher = sensitive("/a;v=1: { requests: 1, window: 1 }");
    assert_eq!(rules(&matcher, "/a"), ["endpoint:/a;v=1"]);
    assert_eq!(rules(&matcher, "/a;v=1"), ["endpoint:/a;v=1"]);
    assert!(rules(&matcher, "/A").is_empty());
}

#[test]
fn path_case_is_that_of_the_route() {
    let matcher = matcher(
        "
upstreams: { app: { servers: ['http://a'] } }
routes:
  - { path: /exact/**, upstream: app, http: { path_case: sensitive } }
  - { upstream: app }
rate_limits:
  endpoints: { /exact/a: { requests: 1, window: 1 }, /loose/A: { requests: 1, window: 1 } }
",
    );
    assert_eq!(rules(&matcher, "/exact/a;x"), ["endpoint:/exact/a"]);
    assert!(rules(&matcher, "/exact/A").is_empty());
    assert_eq!(rules(&matcher, "/EXACT/A"), ["endpoint:/exact/a"]);
    assert_eq!(rules(&matcher, "/loose/a"), ["endpoint:/loose/A"]);
}

#[test]
fn target_without_route_uses_encoded_slash_of_the_policy() {
    let target = |http: &str, path: &str| {
        let matcher = matcher(&format!(
            "
upstreams: {{ app: {{ servers: ['http://a'] }} }}
http: {{ {http} }}
routes: [{{ path: '/a/*', upstream: app }}]
rate_limits: {{ default: {{ requests: 5, window: 1 }} }}
"
        ));
        matcher.target("example.org", path).map(|target| (target.route.is_some(), target.path.into_owned()))
    };
    assert_eq!(target("", "/a%2fb"), Err(PathError::EncodedSlash { byte: b'/' }));
    assert_eq!(target("encoded_slash: decode", "/a%2fb"), Ok((true, "/a/b".to_owned())));
    assert_eq!(target("encoded_slash: decode", "/b%2fb"), Ok((false, "/b/b".to_owned())));
    assert_eq!(target("encoded_slash: decode", "/a%2f..;x"), Err(PathError::DotParameters { at: 3 }));
    assert_eq!(target("encoded_slash: decode", "/a%2fb%0A"), Err(PathError::EncodedControl { byte: b'\n' }));
    assert_eq!(target("encoded_slash: keep", "/a%2fb"), Ok((false, "/a%2Fb".to_owned())));
    assert_eq!(target("", "/a//b"), Ok((true, "/a/b".to_owned())));
}
