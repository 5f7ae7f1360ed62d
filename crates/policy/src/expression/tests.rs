use http::HeaderMap;
use http::header::HeaderName;
use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};
use tidegate_core::Timestamp;

use super::{Expression, ExpressionBudget, LARGEST_PATTERNS, pattern};
use crate::{Addresses, Facts, Identities, IdentitySource, IdentitySpec};

fn headers() -> HeaderMap {
    let lines =
        [("x-user", "alice"), ("x-debug", "1"), ("x-list", "a"), ("x-list", "b"), ("user-agent", "curl/8.1")];
    let named = |name: &'static str| HeaderName::from_static(name);
    lines.into_iter().map(|(name, value)| (named(name), value.parse().unwrap())).collect()
}

fn evaluate(source: &str) -> Result<bool, String> {
    let headers = headers();
    let facts = Facts {
        method: "POST",
        host: Some("api.example.org"),
        path: "/api/v1/orders",
        headers: &headers,
        peer: [192, 0, 2, 7].into(),
        body: crate::BodyFacts::Unknown,
    };
    let user = Some(IdentitySource::Header(HeaderName::from_static("x-user")));
    let addresses = Addresses::default().with_trusted_proxies(["192.0.2.7/32".parse().unwrap()]);
    let identities = Identities::new(IdentitySpec { user, addresses, ..IdentitySpec::default() }).unwrap();
    let identity = identities.identify(&facts, None, Timestamp::from_secs(1_800_000_000));
    let expression = Expression::compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    expression.evaluate(&identity, Some("free")).map_err(|error| error.to_string())
}

fn compile_error(source: &str) -> String {
    Expression::compile(source).expect_err(source).to_string()
}

#[test]
fn expression_reads_request_and_client() {
    for source in [
        "request.method == 'POST'",
        "request.host.endsWith('.example.org')",
        "request.path.startsWith('/api/') && !request.path.contains('admin')",
        "request.method in ['POST', 'PUT']",
        "client.kind == 'ip' && client.ip == '192.0.2.7'",
        "client.tier == 'free'",
        "client.user == 'alice' && client.tenant == ''",
        "request.headers['x-debug'] == '1'",
        "request.headers['X-Debug'] == '1'",
        "request.headers['x-list'] == 'a, b'",
        "request.headers['absent'] == ''",
        "'x-debug' in request.headers && !('absent' in request.headers)",
        "int(request.headers['x-debug']) < 2",
        "size(request.path) > 5 ? true : false",
        "['a', 'b'].exists(x, request.headers['x-list'].contains(x))",
        "request.headers['user-agent'].matches('^curl/[0-9]+')",
        "matches(request.path, 'v[0-9]')",
        "true",
    ] {
        assert_eq!(evaluate(source), Ok(true), "{source}");
    }
    assert_eq!(evaluate("request.method == 'GET' || client.tier == 'premium'"), Ok(false));
}

#[test]
fn evaluation_error_is_reported() {
    assert!(evaluate("int(request.headers['absent']) > 5").is_err());
    assert!(evaluate("1 / size(request.headers['absent']) > 5").is_err());
    assert_eq!(evaluate("request.method == 'POST' || int(request.headers['absent']) > 5"), Ok(true));
}

#[test]
fn syntax_error_has_a_position() {
    assert!(
        compile_error("request.method == ").starts_with("column "),
        "{}",
        compile_error("request.method == ")
    );
    assert!(compile_error("request.method ==\n 'POST' &&& true").starts_with("line 2, column "));
    assert!(compile_error("").starts_with("column 1"), "{}", compile_error(""));
    assert!(compile_error(&"x".repeat(5000)).contains("5000 bytes; the maximum is 4096"));
}

#[test]
fn deeply_nested_expression_is_rejected_without_stack_overflow() {
    let deep = [
        format!("{}true{}", "(".repeat(2000), ")".repeat(2000)),
        format!("{}true", "!".repeat(4000)),
        format!("{}1 == 1", "-".repeat(4000)),
        format!("true{}", "&&true".repeat(600)),
        format!("1{} == 1", "+1".repeat(2000)),
        format!("request{} == ''", ".a".repeat(2000)),
        format!("{}1{} == 1", "[".repeat(2000), "]".repeat(2000)),
        format!("{}true{}", "true?".repeat(600), ":true".repeat(200)),
        format!("request.path{} == ''", ".size()".repeat(500)),
    ];
    for source in deep {
        let _ = Expression::compile(&source);
    }
    let nested = format!("{}true{}", "(".repeat(200), ")".repeat(200));
    assert!(compile_error(&nested).contains("nested too deeply"), "{}", compile_error(&nested));
    assert!(compile_error(&format!("1{} == 1", "+1".repeat(60))).contains("nested too deeply"));
    assert_eq!(evaluate(&format!("true{}", "&&true".repeat(600))), Ok(true));
}

#[test]
fn expression_that_multiplies_its_work_is_rejected() {
    let ten = "[1,2,3,4,5,6,7,8,9,0]";
    let nested = (0..7).fold("1".to_owned(), |inner, _| format!("{ten}.map(x, {inner})"));
    for (source, expected) in [
        (format!("{nested} == []"), "cannot be nested"),
        ("[[1,2]].all(a, a.all(b, b > 0))".to_owned(), "cannot be nested"),
        (format!("['a']{}.size() > 0", ".map(a, a + a)".repeat(20)), "written out"),
        ("(['a'] + ['b']).exists(x, x == 'a')".to_owned(), "written out"),
        (format!("[{}].exists(x, request.path.matches('a'))", ["1"; 200].join(",")), "takes too many steps"),
    ] {
        let error = compile_error(&source);
        assert!(error.contains(expected), "{source}: {error}");
    }
    let hundred: Vec<_> = (0..100).map(|n| format!("'/p{n}'")).collect();
    let source = format!("[{}].exists(p, request.path.startsWith(p))", hundred.join(","));
    assert_eq!(evaluate(&source), Ok(false));
    assert_eq!(evaluate("{'/api/': 1, '/b': 2}.exists(p, request.path.startsWith(p))"), Ok(true));
}

#[test]
fn expressions_of_a_policy_share_a_budget() {
    let when = "request.path.matches('^/a')";
    let mut budget = ExpressionBudget { source: 1_000, patterns: pattern::LARGEST_PATTERN };
    assert!(Expression::compile_within("request.path.matches('(a|b)*a(a|b){16}')", &mut budget).is_err());
    assert_eq!(budget.patterns, 0, "a pattern that is too complex costs as much as the largest one");
    let error = Expression::compile_within(when, &mut ExpressionBudget { patterns: 100, ..budget });
    assert!(error.unwrap_err().to_string().contains("too large together"));
    let mut budget = ExpressionBudget { source: 2 * when.len(), ..ExpressionBudget::default() };
    assert!(Expression::compile_within(when, &mut budget).is_ok());
    assert!(budget.patterns < LARGEST_PATTERNS);
    assert!(Expression::compile_within(when, &mut budget).is_ok());
    let error = Expression::compile_within(when, &mut budget).unwrap_err();
    assert!(error.to_string().contains("longer than 1 MiB"), "{error}");
}

#[test]
fn unknown_name_is_rejected_with_its_position() {
    for (source, expected) in [
        ("request.paht == '/'", "column 1: unknown variable `request.paht`; did you mean `request.path`?"),
        (
            "true || client.tire == 'x'",
            "column 9: unknown variable `client.tire`; did you mean `client.tier`?",
        ),
        ("client.api_key == 'x'", "column 1: unknown variable `client.api_key`"),
        ("request == 'x'", "unknown variable `request`"),
        ("request.path.length == 3", "unknown variable `request.path.length`"),
        ("method == 'GET'", "unknown variable `method`"),
        ("['a'].exists(x, y == 'a')", "column 17: unknown variable `y`"),
        ("false && lower(request.path) == 'x'", "unknown function `lower`"),
        ("request.path.startswith('/')", "unknown function `startswith`"),
        (
            "request.path == '/' &&\n  client.nobody == ''",
            "line 2, column 3: unknown variable `client.nobody`",
        ),
    ] {
        assert!(compile_error(source).contains(expected), "{source}: {}", compile_error(source));
    }
}

#[test]
fn result_that_is_not_boolean_is_rejected() {
    for (source, expected) in [
        ("request.path", "the result is a string, expected a boolean"),
        ("1 + 1", "the result is a number"),
        ("'a' + 'b'", "the result is a string"),
        ("size(request.path)", "the result is a number"),
        ("request.headers", "the result is the headers"),
        ("request.headers['x']", "the result is a string"),
        ("['a'].map(x, x)", "the result is list"),
        ("true ? 'a' : 'b'", "the result is a string"),
        ("type(request.path)", "the result is type"),
    ] {
        assert!(compile_error(source).contains(expected), "{source}: {}", compile_error(source));
    }
}

#[test]
fn type_error_is_rejected() {
    for (source, expected) in [
        ("request.method == 1", "a string never equals a number"),
        ("request.path > 5", "a string and a number cannot be ordered"),
        ("request.method && true", "need boolean operands"),
        ("!request.method", "need boolean operands"),
        ("request.headers[1] == 'x'", "headers are indexed by name"),
        ("has(request.headers.x)", "write `'name' in request.headers`"),
        ("request.headers.exists(h, h == 'x')", "cannot be iterated over"),
        ("request.path.startsWith(1)", "no matching overload"),
        ("request.path.matches('(')", "column 22: regex parse error"),
        ("request.path.matches(request.host)", "must be a literal"),
        (
            "request.path.matches('([a-z]{1,40} ?){1,60}bot')",
            "column 22: the regular expression is too complex",
        ),
    ] {
        assert!(compile_error(source).contains(expected), "{source}: {}", compile_error(source));
    }
}

#[test]
fn expression_records_only_the_variables_it_uses() {
    let expression = Expression::compile("request.method == 'GET' && request.method != client.tier").unwrap();
    assert_eq!(expression.variables.len(), 2);
    assert!(format!("{expression:?}").contains("request.method"));
}

proptest! {
    #[test]
    fn compile_of_any_text_does_not_panic(
        parts in prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![
                    "request", ".", "headers", "['x']", "path", "client.tier", " && ", "==", "'a'", "(", ")", "!",
                    "size(", "?", ":", "[", "]", "1", ".exists(x, ", "in", "-", "{", "}", "matches(", ",", "\n",
                ])
                .prop_map(str::to_owned),
                any::<char>().prop_map(String::from),
            ],
            0..12,
        ),
    ) {
        let _ = Expression::compile(&parts.concat());
    }
}

#[test]
fn headers_looked_up_by_literal_name_are_recorded() {
    let expression = Expression::compile(
        "request.headers['X_One'] == 'not_this' && 'x-two' in request.headers && request.headers.x_three == 'a'",
    );
    let expression = expression.unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<_> = expression.headers().iter().map(HeaderName::as_str).collect();
    assert_eq!(names, ["x_one", "x-two", "x_three"]);
}
