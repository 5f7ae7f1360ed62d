//! The users that bodies name: as services read them, or unreadable.

use http::HeaderMap;
use proptest::prelude::{any, prop, prop_assert_eq, proptest};

use super::BodyUser::{Missing, Named, Unreadable};
use super::*;

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

fn read_with(lines: &[(&str, &str)], body: &[u8], field: &str) -> BodyUser {
    let line =
        |(name, value): &(&str, &str)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
    let mut headers = HeaderMap::new();
    for (name, value) in lines.iter().map(line) {
        headers.append(name, value);
    }
    let peer = [192, 0, 2, 1].into();
    let body = BodyFacts::Complete(body);
    BodyUser::read(
        &Facts { method: "POST", host: None, path: "/login", headers: &headers, peer, body },
        field,
    )
}

fn read(media_type: &str, body: impl AsRef<[u8]>) -> BodyUser {
    read_with(&[("content-type", media_type)], body.as_ref(), "username")
}

fn bob() -> BodyUser {
    Named("bob".to_owned())
}

#[test]
fn field_of_a_form_or_an_object_names_the_user() {
    for body in [
        "username=bob",
        "a=1&username=bob&b=2",
        "%75sername=b%6Fb&",
        "user%6Eame=bob&x=%zz",
        "username=+bob%0A",
        "USERNAME=BOB",
        " username =bob",
        "username%00x=bob",
    ] {
        assert_eq!(read(FORM, body), bob(), "{body}");
        assert_eq!(read(&format!("{}; Charset=\"UTF-8\"", FORM.to_uppercase()), body), bob(), "{body}");
    }
    for body in [
        "{\"username\":\"bob\"}",
        " {\"a\":{\"username\":\"eve\"},\"username\":\"bob\",\"b\":[1,{}]}\r\n",
        "{\"user\\u006eame\":\"\\u0062ob\"}",
        "{\"Username\":\"Bob\"}",
        "{\"u\\u017fername\":\"bob\"}",
    ] {
        for media_type in [JSON, "application/json; charset=utf-8", "APPLICATION/VND.A+JSON", "text/plain"] {
            assert_eq!(read(media_type, body), bob(), "{media_type} {body}");
        }
        assert_eq!(read_with(&[], body.as_bytes(), "username"), bob(), "without a type: {body}");
    }
}

#[test]
fn body_without_the_field_names_no_user() {
    for body in ["", "a=b", "&&", "username=", "username", "username=+%20", "user=bob", "usernames=bob"] {
        assert_eq!(read(FORM, body), Missing, "{body}");
    }
    for body in ["{}", "{\"user\":\"bob\"}", "{\"username\":\"\"}", "{\"a\":{\"username\":\"bob\"}}"] {
        assert_eq!(read(JSON, body), Missing, "{body}");
    }
}

#[test]
fn field_that_services_read_differently_is_unreadable() {
    for body in [
        "username=bob&username=bob",
        "username=eve&%75sername=bob",
        "username=eve&USERNAME=bob",
        "username[]=bob",
        "username%5B0%5D=bob",
        "[username]=bob",
        "username[$ne]=bob",
        "a=1;username=bob",
        "username=eve;username=bob",
        "username=bob;a=1",
        "username=%ff",
        "username=%zz",
        "username=bob%",
        "{\"username\":\"bob\"}",
        "\u{feff} {\"a\":\"&username=eve\"}",
    ] {
        assert_eq!(read(FORM, body), Unreadable, "{body}");
    }
    for body in [
        "{\"username\":\"eve\",\"username\":\"bob\"}",
        "{\"username\":\"bob\",\"username\":null}",
        "{\"username\":\"eve\",\"user\\u006eame\":\"bob\"}",
        "{\"username\":\"eve\",\"USERNAME\":\"bob\"}",
        "{\"username\":[\"bob\"]}",
        "{\"username\":{\"$gt\":\"\"}}",
        "{\"username\":42}",
        "{\"username\":null}",
        "{\"username\":true}",
        "{\"username\":\"\\ud800\"}",
        "[{\"username\":\"bob\"}]",
        "\"bob\"",
        "{\"username\":\"bob\"",
        "{\"username\":\"bob\"} {}",
        "{\"username\":\"bob\",\"a\":\"&username=eve\"}",
        "{\"a\":NaN,\"username\":\"bob\"}",
        "{'username':'bob'}",
        "{\"username\":\"bob\",}",
        "\u{feff}{\"username\":\"bob\"}",
        "username=bob",
        " ",
    ] {
        assert_eq!(read(JSON, body), Unreadable, "{body}");
    }
    assert_eq!(read(JSON, b"{\"username\":\"b\xff\"}"), Unreadable);
    let utf16: Vec<u8> = "{\"username\":\"bob\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(read(JSON, utf16), Unreadable);
    let deep = format!("{{\"a\":{}{},\"username\":\"bob\"}}", "[".repeat(5_000), "]".repeat(5_000));
    assert!([bob(), Unreadable].contains(&read(JSON, deep)));
}

#[test]
fn body_of_another_coding_type_or_size_is_unreadable() {
    for media_type in [
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-7",
        "application/json; charset=utf-8; charset=utf-16",
        "application/json;charset",
        "application/json, application/x-www-form-urlencoded",
        "application/x-www-form-urlencoded; charset=iso-8859-1",
    ] {
        for body in ["username=bob", "{\"username\":\"bob\"}"] {
            assert_eq!(read(media_type, body), Unreadable, "{media_type} {body}");
        }
    }
    let with = |lines: &[(&str, &str)]| read_with(lines, b"username=bob", "username");
    assert_eq!(with(&[("content-type", FORM), ("content-type", FORM)]), Unreadable);
    assert_eq!(with(&[("content-type", FORM), ("content-type", JSON)]), Unreadable);
    assert_eq!(with(&[("content-type", FORM), ("content-encoding", "gzip")]), Unreadable);
    assert_eq!(with(&[("content-type", FORM), ("content-encoding", "identity, br")]), Unreadable);
    assert_eq!(
        with(&[("content-type", FORM), ("content-encoding", "identity"), ("content-encoding", "br")]),
        Unreadable
    );
    assert_eq!(with(&[("content-type", FORM), ("content-encoding", "Identity")]), bob());
    assert_eq!(with(&[("content-type", "text/plain")]), Unreadable);
    assert_eq!(with(&[]), Unreadable);
    let long = |length: usize| format!("username=bob&a={}", "x".repeat(length - "username=bob&a=".len()));
    assert_eq!(read(FORM, long(MAX_USER_BODY)), bob());
    assert_eq!(read(FORM, long(MAX_USER_BODY + 1)), Unreadable);
    assert_eq!(read(FORM, format!("username={}", "b".repeat(257))), Unreadable);
}

#[test]
fn names_that_services_may_treat_as_equal_are_one_user() {
    for name in [
        "Bob",
        "BOB",
        " bob ",
        "b\u{f6}b",
        "bo\u{308}b",
        "b\u{200b}ob",
        "bo\u{ad}b",
        "\u{ff42}\u{ff4f}\u{ff42}",
        "b\u{1d428}b",
        "bob\0",
        "\u{212c}ob",
        "b o b",
    ] {
        assert_eq!(BodyUser::named(name), bob(), "{}", name.escape_unicode());
    }
    assert_eq!(BodyUser::named("stra\u{df}e"), BodyUser::named("STRASSE"));
    assert_eq!(BodyUser::named("\u{212a}im"), Named("kim".to_owned()));
    assert_ne!(BodyUser::named("bob"), BodyUser::named("b0b"));
    assert_eq!(BodyUser::named("\u{200b}"), Missing);
}

#[test]
fn field_whose_name_has_other_characters_is_found_as_php_names_it() {
    for body in ["user.name=bob", "user name=bob", "user_name=bob", "user[name=bob"] {
        let user = read_with(&[("content-type", FORM)], body.as_bytes(), "user_name");
        assert_eq!(user, bob(), "{body}");
    }
}

proptest! {
    #[test]
    fn name_is_the_same_in_a_form_and_in_an_object(name in "\\PC{1,20}", rest in prop::collection::vec("[a-z]{1,4}", 0..3)) {
        let mut object = serde_json::Map::new();
        object.extend(rest.iter().map(|field| (format!("x{field}"), Value::from("eve"))));
        object.insert("username".to_owned(), name.clone().into());
        let encoded = name.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
        let form = rest.iter().map(|field| format!("x{field}=eve&")).collect::<Vec<_>>().concat();
        let expected = BodyUser::named(&name);
        prop_assert_eq!(&read(FORM, format!("{form}username={encoded}")), &expected);
        prop_assert_eq!(&read(JSON, serde_json::to_vec(&object).unwrap()), &expected);
    }

    #[test]
    fn folding_is_idempotent(name in "\\PC{0,12}") {
        prop_assert_eq!(folded(&folded(&name)), folded(&name));
    }

    #[test]
    fn any_body_is_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..60), is_form in any::<bool>()) {
        let _ = read(if is_form { FORM } else { JSON }, body);
    }
}
