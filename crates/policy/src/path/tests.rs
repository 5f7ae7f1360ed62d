use std::borrow::Cow;

use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{PathError, normalize};

#[track_caller]
fn assert_normalized(path: &str, expected: &str) {
    assert_eq!(normalize(path).as_deref(), Ok(expected), "{path}");
}

#[test]
fn normalised_path_is_borrowed() {
    for path in
        ["/", "/api/v1/users", "/a/", "/a%2Fb", "/a;v=1/b:c@d", "/.well-known/x", "/...", "/a..b", "*"]
    {
        assert!(matches!(normalize(path), Ok(Cow::Borrowed(same)) if same == path), "{path}");
    }
}

#[test]
fn escapes_are_decoded_or_uppercased() {
    assert_normalized("/%6Cogin", "/login");
    assert_normalized("/%7e%5F%2D%2e1", "/~_-.1");
    assert_normalized("/a%2fb", "/a%2Fb");
    assert_normalized("/%2F%2f/", "/%2F%2F/");
    assert_normalized("/caf%c3%a9", "/caf%C3%A9");
    assert_normalized("/café", "/caf%C3%A9");
    assert_normalized("/{id}|\"x\"", "/%7Bid%7D%7C%22x%22");
    assert_normalized("/%5c..%5c", "/%5C..%5C");
    assert_normalized("/a%0ab", "/a%0Ab");
    // The result of decoding is not decoded again.
    assert_normalized("/%2541", "/%2541");
}

#[test]
fn dot_segments_and_duplicate_slashes_are_removed() {
    assert_normalized("//a///b", "/a/b");
    assert_normalized("/a//", "/a/");
    assert_normalized("/a/./b/.", "/a/b/");
    assert_normalized("/a/b/..", "/a/");
    assert_normalized("/a/b/../../../..", "/");
    assert_normalized("/a/../b", "/b");
    assert_normalized("/a//../b", "/b");
    assert_normalized("/a/%2e%2E/b", "/b");
    assert_normalized("/a/.%2e/%2e/b/", "/b/");
    assert_normalized("/..", "/");
    assert_normalized("/.", "/");
    assert_normalized("//", "/");
    assert_normalized("/a%2F..%2Fb", "/a%2F..%2Fb");
}

#[test]
fn case_and_one_trailing_slash_are_kept() {
    assert_normalized("/API/V1/", "/API/V1/");
}

#[test]
fn ambiguous_path_is_rejected() {
    let assert_rejected = |path: &str, expected| assert_eq!(normalize(path), Err(expected), "{path}");
    for path in ["", "login", "**", "http://host/"] {
        assert_rejected(path, PathError::NotAbsolute);
    }
    for found in [' ', '\\', '?', '#', '\0', '\n', '\r', '\t', '\x7f'] {
        assert_rejected(&format!("/a{found}b"), PathError::Character { found, at: 2 });
    }
    for path in ["/a%", "/a%4", "/a%zz", "/a%4/1", "/a%+1", "/a%é"] {
        assert_rejected(path, PathError::Escape { at: 2 });
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
        assert_rejected(path, PathError::NotUtf8 { at: 1 });
    }
    assert_rejected("/é%A9", PathError::NotUtf8 { at: 3 });
    assert_rejected("/a%00", PathError::Nul { at: 2 });
    for path in ["/a/..;/b", "/a/.;x", "/a/%2e%2e;x=1/b", "/a/..;"] {
        assert_rejected(path, PathError::DotParameters { at: 3 });
    }
}

#[test]
fn path_error_names_the_character_and_its_offset() {
    let message = |path: &str| normalize(path).unwrap_err().to_string();
    assert_eq!(message("/a\nb"), "'\\n' at byte 2 of the path must be percent-encoded");
    assert_eq!(message("/%4"), "`%` at byte 1 of the path is not followed by two hexadecimal digits");
}

/// Paths made of the text that normalisation handles, and sometimes of arbitrary text.
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
    fn normalisation_is_idempotent(path in paths()) {
        if let Ok(once) = normalize(&path) {
            prop_assert!(matches!(normalize(&once), Ok(Cow::Borrowed(twice)) if twice == once), "{once}");
        }
    }

    #[test]
    fn path_is_borrowed_exactly_if_it_is_unchanged(path in paths()) {
        if let Ok(normal) = normalize(&path) {
            prop_assert_eq!(matches!(normal, Cow::Borrowed(_)), normal == path);
        }
    }

    #[test]
    fn normalised_path_has_no_redundant_escape_or_segment(path in paths()) {
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
