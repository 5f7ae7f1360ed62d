//! Every input is a usable policy or is rejected with problems.

use std::borrow::Cow;

use http::header::{HOST, HeaderValue};
use http::{HeaderMap, Uri, Version};
use tidegate_core::Timestamp;
use tidegate_policy::{
    Admission, Facts, FileError, Files, HeaderTraits, Matcher, ReadOptions, RequestHead, Scratch, compile,
    diff,
};

/// Files that a policy may refer to.
struct TestFiles;

impl Files for TestFiles {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        match name {
            "keys.csv" => Ok(Cow::Borrowed(b"key,tier,tenant\nk1,free,acme\nk2,premium\n")),
            "bans.txt" => Ok(Cow::Borrowed(b"203.0.113.0/24\n")),
            "jwt.secret" => Ok(Cow::Borrowed(b"a secret of more than sixteen bytes\n")),
            _ => Err(FileError::Missing),
        }
    }
}

pub(crate) fn assert_law(bytes: &[u8]) {
    let compiled = match compile("policy.yaml", bytes, &TestFiles) {
        Ok(compiled) => compiled,
        Err(problems) => {
            assert!(problems.has_errors());
            assert!(!problems.to_string().is_empty());
            return;
        }
    };
    assert!(!compiled.warnings.has_errors());
    assert!(diff(&compiled.plan, &compiled.plan).is_empty());
    let matcher = Matcher::new(compiled.plan);
    let plan = matcher.plan();
    let headers: HeaderMap = [(http::header::USER_AGENT, "fuzz".parse().ok())]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    let mut scratch = Scratch::default();
    let requests = [
        ("GET", "/"),
        ("POST", "/login"),
        ("GET", "/api/v1/search/"),
        ("GET", "/API%2FV1;x/%C3%89%0A"),
        ("OPTIONS", "*"),
    ];
    for (method, path) in requests {
        let facts = Facts {
            method,
            host: Some("example.org"),
            path,
            headers: &headers,
            peer: [192, 0, 2, 1].into(),
            body: tidegate_policy::BodyFacts::Unknown,
        };
        let directory = plan.directory.as_deref();
        if let Admission::Checked(matched) = matcher.admit(&facts, directory, Timestamp::ZERO, &mut scratch) {
            assert_eq!(matched.checks().len(), matched.rules().count());
            for (check, rule) in matched.checks().iter().zip(matched.rules()) {
                assert_eq!(check.key.rule, rule.id);
                assert!(check.cost.get() >= 1);
            }
            let limits = &plan.rate_limits;
            assert!(limits.global.is_none() || matched.rules().any(|rule| rule.name == "global"));
        }
        let (uri, peer) = (Uri::from_static(path), facts.peer);
        let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("example.org"))]);
        let (traits, version) = (HeaderTraits::default(), Some(Version::HTTP_11));
        let head = RequestHead { method, uri: &uri, version, headers: &mut headers, traits, peer };
        let options = ReadOptions { directory, needs_route: false, removes_headers: true };
        if let Ok(read) = matcher.read(head, options, || Timestamp::ZERO) {
            assert_eq!(read.route, matcher.route("example.org", &read.path));
        }
    }
}
