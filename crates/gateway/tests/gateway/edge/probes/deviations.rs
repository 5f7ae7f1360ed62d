//! Where the gateway deliberately treats a probe in another way than nginx. docs/gateway.md has the same list.

/// A kind of request, what nginx and the gateway do with it, why, and the probes that show it.
pub(super) struct Deviation {
    pub(super) request: &'static str,
    pub(super) nginx: &'static str,
    pub(super) gateway: &'static str,
    pub(super) reason: &'static str,
    pub(super) probes: &'static [&'static str],
}

impl Deviation {
    /// The row of the table in docs/gateway.md.
    fn row(&self) -> String {
        format!("| {} | {} | {} | {} |", self.request, self.nginx, self.gateway, self.reason)
    }
}

pub(super) const DEVIATIONS: &[Deviation] = &[
    Deviation {
        request: "an HTTP/1 version other than 1.0 and 1.1",
        nginx: "forwards 1.2, 505 for 2.0",
        gateway: "400",
        reason: "no such version exists; RFC 9110 allows to read 1.2 as 1.1, but a client that writes it is broken or probing",
        probes: &[
            "request line: version 1.2",
            "request line: version 1.10",
            "request line: version 2",
            "request line: version 2.0",
            "request line: version 3",
        ],
    },
    Deviation {
        request: "a request line without a version (HTTP/0.9)",
        nginx: "forwards",
        gateway: "400",
        reason: "the response has no head, so no limit could be reported",
        probes: &[
            "request line: no version",
            "request line: no version, but a space",
            "request line: HTTP/0.9",
            "request line: HTTP/0.9 with one line",
        ],
    },
    Deviation {
        request: "a request line with extra spaces or a stray CR",
        nginx: "forwards",
        gateway: "400",
        reason: "servers disagree about where its target ends",
        probes: &[
            "request line: space after the version",
            "request line: two spaces before the target",
            "request line: two spaces after the target",
            "request line: bare CR first",
            "sequence: GET and an invalid line",
        ],
    },
    Deviation {
        request: "a method with digits",
        nginx: "400",
        gateway: "forwards",
        reason: "a method is any token; rules and services decide about methods",
        probes: &["request line: method of digits"],
    },
    Deviation {
        request: "`TRACE`",
        nginx: "405",
        gateway: "forwards",
        reason: "rules and services decide about methods",
        probes: &["request line: TRACE"],
    },
    Deviation {
        request: "`CONNECT` to a path",
        nginx: "405",
        gateway: "400",
        reason: "the target of `CONNECT` must be a host and a port",
        probes: &["target: CONNECT to a path"],
    },
    Deviation {
        request: "`OPTIONS *`",
        nginx: "400",
        gateway: "404",
        reason: "the request is valid, but no route takes `*`",
        probes: &["target: OPTIONS of an asterisk"],
    },
    Deviation {
        request: "a head or a length above the bounds",
        nginx: "414 or 400",
        gateway: "431",
        reason: "one bound holds for the whole head",
        probes: &[
            "request line: long method",
            "request line: long target",
            "header: long value",
            "header: long value without an end",
            "header: long name",
            "header: long head of short fields",
            "content-length: largest of 64 bits",
        ],
    },
    Deviation {
        request: "more than 100 header fields",
        nginx: "forwards",
        gateway: "431",
        reason: "fields cost memory and time, here and in the service",
        probes: &["header: more fields than allowed"],
    },
    Deviation {
        request: "a path that is not normalised",
        nginx: "forwards it as it is",
        gateway: "forwards the normalised path",
        reason: "the service must see the path that was matched",
        probes: &[
            "target: network path",
            "target: dot segments",
            "target: encoded dot segments",
            "target: double slashes",
            "target: encoded letter",
            "target: encoded tilde",
            "target: encoded UTF-8",
            "target: fragment",
        ],
    },
    Deviation {
        request: "`..` above the root",
        nginx: "400",
        gateway: "forwards without it",
        reason: "RFC 3986 removes it, and the path has one meaning then",
        probes: &["target: dot segments above the root"],
    },
    Deviation {
        request: "an encoded slash, backslash or control character in a path",
        nginx: "forwards",
        gateway: "400",
        reason: "services disagree about the path it means, so a limit could be evaded",
        probes: &[
            "target: encoded slash",
            "target: encoded slash in lower case",
            "target: encoded slash after dots",
            "target: encoded backslash",
            "target: encoded backslash in lower case",
            "target: encoded line feed",
            "target: encoded carriage return and line feed",
            "target: encoded tab",
            "target: encoded escape",
            "target: encoded DEL",
        ],
    },
    Deviation {
        request: "an escape in a path that is not UTF-8",
        nginx: "forwards",
        gateway: "400",
        reason: "overlong forms decode to `.` and `/` in lenient services",
        probes: &[
            "target: overlong escape",
            "target: escape that is no UTF-8",
            "target: escape of a surrogate",
        ],
    },
    Deviation {
        request: "a backslash or `..;` in a path",
        nginx: "forwards",
        gateway: "400",
        reason: "some services resolve them as dot segments",
        probes: &["target: dot segment with parameters", "target: backslash"],
    },
    Deviation {
        request: "a `Host` with characters that no host has",
        nginx: "forwards",
        gateway: "400",
        reason: "a user, a query or a quote makes readers find different hosts",
        probes: &[
            "host: query",
            "host: user",
            "host: backslash",
            "host: quotes",
            "host: byte beyond ASCII",
            "host beside a target: query",
            "host beside a target: user",
            "host beside a target: backslash",
            "host beside a target: quotes",
            "host beside a target: byte beyond ASCII",
        ],
    },
    Deviation {
        request: "tabs around the value of a header",
        nginx: "part of the value: 400 or 501",
        gateway: "not part of the value",
        reason: "RFC 9110 allows spaces and tabs there",
        probes: &[
            "host: spaces around it",
            "host beside a target: spaces around it",
            "content-length: spaces and tabs around it",
            "transfer-encoding: spaces and tabs around it",
        ],
    },
    Deviation {
        request: "a control character in the value of a header, or two CRs at its end",
        nginx: "forwards",
        gateway: "400",
        reason: "services may end the value or the line there",
        probes: &[
            "header: two CRs before an LF",
            "header: backspace in a value",
            "header: vertical tab in a value",
            "header: escape in a value",
            "header: DEL in a value",
        ],
    },
    Deviation {
        request: "a header line without a colon, or with an invalid name",
        nginx: "drops the line and forwards",
        gateway: "400",
        reason: "what is dropped here may frame the request for another reader",
        probes: &[
            "header: no colon",
            "header: byte beyond ASCII in a name",
            "header: brackets in a name",
            "header: slash in a name",
            "header: quotes in a name",
            "header: at sign in a name",
            "header: semicolon in a name",
        ],
    },
    Deviation {
        request: "the same `Content-Length` twice, or `Expect` twice",
        nginx: "400",
        gateway: "forwards, with one `Content-Length`",
        reason: "RFC 9110 allows both; the framing has one meaning",
        probes: &[
            "content-length: two that are equal",
            "content-length: two that are equal, in another case",
            "content-length: two that differ in zeros",
            "connection: expect twice",
        ],
    },
    Deviation {
        request: "a `Connection` that names a forwarding header",
        nginx: "forwards",
        gateway: "400",
        reason: "the header would be removed after it was used to find the client",
        probes: &["connection: names a forwarding header"],
    },
    Deviation {
        request: "both `Transfer-Encoding: chunked` and `Content-Length`",
        nginx: "400",
        gateway: "forwards chunks without the length, then closes",
        reason: "RFC 9112 allows it: the coding counts, the service sees one framing, and nothing after it is read",
        probes: &[
            "transfer-encoding: length first",
            "transfer-encoding: length last",
            "transfer-encoding: length of zero",
            "transfer-encoding: length that is no number",
            "sequence: length and coding with a request behind them",
        ],
    },
    Deviation {
        request: "a `Transfer-Encoding` other than `chunked`",
        nginx: "501",
        gateway: "400",
        reason: "both reject it; the end of the request is unknown, which is a framing error",
        probes: &[
            "transfer-encoding: xchunked",
            "transfer-encoding: chunkedx",
            "transfer-encoding: identity",
            "transfer-encoding: gzip",
            "transfer-encoding: empty",
            "transfer-encoding: comma",
            "transfer-encoding: chunked, identity",
            "transfer-encoding: identity, chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked, gzip",
            "transfer-encoding: chunked twice in a list",
            "transfer-encoding: comma first",
            "transfer-encoding: comma last",
            "transfer-encoding: parameter",
            "transfer-encoding: quotes",
            "transfer-encoding: single quotes",
            "transfer-encoding: space within",
            "transfer-encoding: vertical tab before it",
            "transfer-encoding: form feed before it",
            "transfer-encoding: no-break space after it",
            "transfer-encoding: length and identity",
            "transfer-encoding: length and an empty coding",
            "sequence: length that hides a request from a chunked reader",
        ],
    },
    Deviation {
        request: "chunks with a bare LF, junk in a size or an extension, an invalid trailer, or a long extension or trailer",
        nginx: "forwards",
        gateway: "400",
        reason: "readers disagree about where such a body ends",
        probes: &[
            "chunks: size of two words",
            "chunks: bare LF after a size",
            "chunks: bare LF in an extension",
            "chunks: bare LF after data",
            "chunks: data shorter than its size",
            "chunks: bare LF after the last size",
            "chunks: trailer with a space in its name",
            "chunks: trailer with a NUL",
            "chunks: trailer without a colon",
            "chunks: long extension",
            "chunks: long trailer",
            "chunks: many trailers",
            "chunks: space after a size",
            "chunks: tab after the last size",
            "chunks: NUL in an extension",
            "chunks: escape in an extension",
            "chunks: DEL in the last extension",
            "chunks: bare LF for the end",
            "chunks: request behind a bare LF for the end",
            "chunks: bare LF after a trailer",
            "chunks: two bare LFs after a trailer",
            "chunks: bare LF for the end after a trailer",
            "chunks: folded trailer",
            "chunks: trailer with an escape",
        ],
    },
    Deviation {
        request: "a chunk size near 2^63 or above it",
        nginx: "400",
        gateway: "413",
        reason: "the body is longer than allowed; 400 from 2^64",
        probes: &["chunks: largest size of 64 bits", "chunks: size of 2^63", "chunks: huge size"],
    },
    Deviation {
        request: "a body that the client cuts short",
        nginx: "closes without a response",
        gateway: "400",
        reason: "a client that only ended its side can read what is wrong",
        probes: &[
            "content-length: body cut short",
            "content-length: no body",
            "chunks: no end",
            "chunks: half an end",
            "chunks: half a chunk",
            "chunks: half a size",
            "chunks: nothing",
        ],
    },
];

#[test]
fn deviations_name_existing_probes_once() {
    let names: Vec<_> = super::all().into_iter().map(|probe| probe.name).collect();
    let mut listed: Vec<_> = DEVIATIONS.iter().flat_map(|deviation| deviation.probes).collect();
    for probe in &listed {
        assert!(names.iter().any(|name| name == *probe), "there is no probe `{probe}`");
    }
    let count = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), count, "no probe is in two deviations");
}

#[test]
fn deviations_are_those_of_the_documentation() {
    let page = include_str!("../../../../../../docs/gateway.md");
    let (_, section) = page.split_once("\n## Differences from nginx\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    let expected: Vec<_> = DEVIATIONS.iter().map(Deviation::row).collect();
    assert_eq!(rows, expected, "docs/gateway.md must have these rows:\n{}", expected.join("\n"));
}
