use std::borrow::Cow;

use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{PathError, normalize};

#[track_caller]
fn becomes(path: &str, expected: &str) {
    assert_eq!(normalize(path).as_deref(), Ok(expected), "{path}");
}

#[test]
fn a_clean_path_is_lent() {
    for path in
        ["/", "/api/v1/users", "/a/", "/a%2Fb", "/a;v=1/b:c@d", "/.well-known/x", "/...", "/a..b", "*"]
    {
        assert!(matches!(normalize(path), Ok(Cow::Borrowed(same)) if same == path), "{path}");
    }
}

#[test]
fn escapes_have_one_spelling() {
    becomes("/%6Cogin", "/login");
    becomes("/%7e%5F%2D%2e1", "/~_-.1");
    becomes("/a%2fb", "/a%2Fb");
    becomes("/%2F%2f/", "/%2F%2F/");
    becomes("/caf%c3%a9", "/caf%C3%A9");
    becomes("/café", "/caf%C3%A9");
    becomes("/{id}|\"x\"", "/%7Bid%7D%7C%22x%22");
    becomes("/%5c..%5c", "/%5C..%5C");
    becomes("/a%0ab", "/a%0Ab");
    // Decoding once is all: what it yields is not decoded again.
    becomes("/%2541", "/%2541");
}

#[test]
fn dot_segments_and_duplicate_slashes_go() {
    becomes("//a///b", "/a/b");
    becomes("/a//", "/a/");
    becomes("/a/./b/.", "/a/b/");
    becomes("/a/b/..", "/a/");
    becomes("/a/b/../../../..", "/");
    becomes("/a/../b", "/b");
    becomes("/a//../b", "/b");
    becomes("/a/%2e%2E/b", "/b");
    becomes("/a/.%2e/%2e/b/", "/b/");
    becomes("/..", "/");
    becomes("/.", "/");
    becomes("//", "/");
    becomes("/a%2F..%2Fb", "/a%2F..%2Fb");
}

#[test]
fn case_and_one_trailing_slash_are_kept() {
    becomes("/API/V1/", "/API/V1/");
}

#[test]
fn what_readers_disagree_about_is_refused() {
    let refused = |path: &str, expected| assert_eq!(normalize(path), Err(expected), "{path}");
    for path in ["", "login", "**", "http://host/"] {
        refused(path, PathError::NotAbsolute);
    }
    for found in [' ', '\\', '?', '#', '\0', '\n', '\r', '\t', '\x7f'] {
        refused(&format!("/a{found}b"), PathError::Character { found, at: 2 });
    }
    for path in ["/a%", "/a%4", "/a%zz", "/a%4/1", "/a%+1", "/a%é"] {
        refused(path, PathError::Escape { at: 2 });
    }
    // Overlong slash and dot, surrogate, too large, Latin-1, cut short by the end, an escape or a raw character.
    for path in [
        "/%C0%AF",
        "/%c0%ae",
        "/%E0%80%AF",
        "/%ED%A0%80",
        "/%F4%90%80%80",
        "/%F8%88%80%80%80",
        "/%E9",
        "/%80",
        "/%C3",
        "/%C3/%A9",
        "/%C3%41",
        "/%C3é",
    ] {
        refused(path, PathError::NotUtf8 { at: 1 });
    }
    refused("/é%A9", PathError::NotUtf8 { at: 3 });
    refused("/a%00", PathError::Nul { at: 2 });
    for path in ["/a/..;/b", "/a/.;x", "/a/%2e%2e;x=1/b", "/a/..;"] {
        refused(path, PathError::DotParameters { at: 3 });
    }
}

#[test]
fn an_error_names_what_and_where() {
    let said = |path: &str| normalize(path).unwrap_err().to_string();
    assert_eq!(said("/a\nb"), "'\\n' at byte 2 of the path must be percent-encoded");
    assert_eq!(said("/%4"), "`%` at byte 1 of the path is not followed by two hexadecimal digits");
}

/// Paths made of what normalisation is about, and sometimes of anything.
fn paths() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => prop::sample::select(vec![
            "/", "//", ".", "..", "%2e", "%2E", "%2f", "%2F", "%41", "%5b", "a", "B", ";", "{", "é", "%C3%A9",
            "%c3%a9", "%20", "*", "%25", "~",
        ])
        .prop_map(str::to_owned),
        1 => any::<u8>().prop_map(|byte| format!("%{byte:02x}")),
        1 => any::<char>().prop_map(String::from),
    ];
    let tail = prop::collection::vec(part, 0..20).prop_map(|parts| format!("/{}", parts.concat()));
    prop_oneof![9 => tail, 1 => ".*", 1 => Just("*".to_owned())]
}

proptest! {
    #[test]
    fn normalising_twice_is_normalising_once(path in paths()) {
        if let Ok(once) = normalize(&path) {
            prop_assert!(matches!(normalize(&once), Ok(Cow::Borrowed(twice)) if twice == once), "{once}");
        }
    }

    #[test]
    fn a_path_is_lent_exactly_when_it_is_unchanged(path in paths()) {
        if let Ok(normal) = normalize(&path) {
            prop_assert_eq!(matches!(normal, Cow::Borrowed(_)), normal == path);
        }
    }

    #[test]
    fn no_second_spelling_is_left(path in paths()) {
        let Ok(normal) = normalize(&path) else { return Ok(()) };
        prop_assert!(normal.len() <= 3 * path.len());
        prop_assert!(normal.is_ascii());
        prop_assert!(!normal.contains("//"));
        prop_assert!(!normal.split('/').any(|segment| segment == "." || segment == ".."));
        for (at, _) in normal.match_indices('%') {
            let digits = &normal[at + 1..at + 3];
            let byte = u8::from_str_radix(digits, 16).unwrap();
            prop_assert_eq!(digits, digits.to_uppercase());
            prop_assert!(!super::is_unreserved(byte) && byte != 0, "%{}", digits);
        }
    }

    #[test]
    fn escaping_unreserved_characters_changes_nothing(path in "/[a-zA-Z0-9._~/-]{0,30}", which in any::<u64>()) {
        let escaped: String = path.char_indices().map(|(at, character)| {
            if character != '/' && which >> (at % 64) & 1 == 1 {
                format!("%{:02x}", character as u32)
            } else {
                character.to_string()
            }
        }).collect();
        prop_assert_eq!(normalize(&escaped), normalize(&path));
    }
}
