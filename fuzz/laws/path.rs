//! Every path has exactly one normal form, whatever the client sends.

use std::borrow::Cow;

use tidegate_policy::{EndpointPattern, Endpoints, normalize};

pub(crate) fn assert_law(path: &str) {
    // The same text as a pattern is parsed or rejected, and a parsed pattern matches itself.
    if let Ok(pattern) = EndpointPattern::parse(path) {
        let mut endpoints = Endpoints::default();
        assert!(endpoints.insert(&pattern, ()).is_ok());
        assert!(endpoints.insert(&pattern, ()).is_err());
        assert_eq!(EndpointPattern::parse(&pattern.to_string()), Ok(pattern.clone()));
        if pattern.is_literal() {
            let shown = pattern.to_string();
            let path = &shown[shown.find('/').unwrap_or_default()..];
            assert!(endpoints.find(pattern.method().unwrap_or("GET"), path).is_some());
        }
    }
    let Ok(normal) = normalize(path) else { return };
    assert!(matches!(normalize(&normal), Ok(Cow::Borrowed(twice)) if twice == normal));
    assert_eq!(matches!(normal, Cow::Borrowed(_)), normal == path);
    assert!(normal.len() <= 3 * path.len());
    assert!(normal.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!normal.contains("//") && !normal.contains(['\\', '?', '#']));
    assert!(!normal.split('/').any(|segment| segment == "." || segment == ".."));
}
