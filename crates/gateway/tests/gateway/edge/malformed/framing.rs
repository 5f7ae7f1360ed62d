//! Where a request ends: lengths, codings and what follows.

use super::{BrokenOff, Case, Forwarded, Refused, hold};

#[tokio::test]
async fn a_length_is_one_number_or_nothing_is_forwarded() {
    let cases: &[Case] = &[
        ("a plus", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", Refused),
        ("a minus", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc", Refused),
        ("a space within", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1 3\r\n\r\nabc", Refused),
        ("hexadecimal", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc", Refused),
        ("a fraction", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3.0\r\n\r\nabc", Refused),
        ("a word", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: three\r\n\r\nabc", Refused),
        ("empty", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nabc", Refused),
        ("a list", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc", Refused),
        ("a list that differs", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 0\r\n\r\nabc", Refused),
        (
            "two that differ",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 0\r\n\r\nabc",
            Refused,
        ),
        (
            "beyond 64 bits",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551619\r\n\r\nabc",
            Refused,
        ),
        (
            "64 bits",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\nabc",
            Refused,
        ),
        (
            "a space before the colon",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc",
            Refused,
        ),
        (
            "the same twice",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            Forwarded(&["/a"]),
        ),
        ("zeros first", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\n\r\nabc", Forwarded(&["/a"])),
        ("too little", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabc", BrokenOff),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_coding_is_chunked_once_or_nothing_is_forwarded() {
    let cases: &[Case] = &[
        ("xchunked", b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", Refused),
        ("identity", b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", Refused),
        ("gzip", b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", Refused),
        ("empty", b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n", Refused),
        (
            "chunked, identity",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "gzip, chunked",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "chunked twice",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_coding_in_two_lines_or_disguise_is_refused_and_a_plain_one_in_any_case_is_not() {
    let cases: &[Case] = &[
        (
            "chunked in two lines",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "chunked, then another line",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "another line, then chunked",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "a quoted coding",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "a vertical tab",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "a space before the colon",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "HTTP/1.0",
            b"POST /a HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        (
            "upper case",
            b"POST /a HTTP/1.1\r\nHost: a\r\ntRANSFER-eNCODING: CHUNKED\r\n\r\n0\r\n\r\n",
            Forwarded(&["/a"]),
        ),
        (
            "tabs around it",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\t chunked \t\r\n\r\n0\r\n\r\n",
            Forwarded(&["/a"]),
        ),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn what_follows_a_request_is_a_request_of_its_own_or_nothing() {
    let cases: &[Case] = &[
        (
            "two at once",
            b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
            Forwarded(&["/a", "/b"]),
        ),
        (
            "a body and another",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
            Forwarded(&["/a", "/b"]),
        ),
        (
            "a request as the body of a GET",
            b"GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 32\r\n\r\nGET /smuggled HTTP/1.1\r\nHost:a\r\n",
            Forwarded(&["/a"]),
        ),
        (
            "the length loses against the coding",
            b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Forwarded(&["/a"]),
        ),
        (
            "the coding wins against the length",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n",
            Forwarded(&["/a"]),
        ),
        (
            "junk after a request",
            b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n\0\0\0\0",
            Forwarded(&["/a"]),
        ),
        (
            "half a request after one",
            b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HT",
            Forwarded(&["/a"]),
        ),
        (
            "Connection hides the length",
            b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: content-length\r\nContent-Length: 3\r\n\r\nabc",
            Forwarded(&["/a"]),
        ),
        (
            "Connection hides the host",
            b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: host, close\r\n\r\n",
            Forwarded(&["/a"]),
        ),
        (
            "Connection hides the coding",
            b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Forwarded(&["/a"]),
        ),
    ];
    hold(cases).await;
}
