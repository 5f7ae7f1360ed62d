//! Any mixture of commands has the same replies, however its bytes are split.

use proptest::prelude::*;

use super::*;

/// A listener that requires a token, and a rule for three requests.
const POLICY: &str = "{ service: { resp: { address: \"127.0.0.1:6380\", token_file: t } }, \
                      rate_limits: { default: { requests: 3, window: 1h } } }";
const AUTH: &str = "AUTH token-0123456789-0123456789-0123456789";
/// Sent as arrays of bulk strings and inline.
const COMMANDS: [&str; 32] = [
    "CL.THROTTLE a 3 1 60",
    "CL.THROTTLE a 3 1 60",
    "cl.throttle b 3 1 60 2",
    "CL.THROTTLE b 0 7 3600",
    "CL.THROTTLE a 3 1 60 0",
    "CL.THROTTLE a 3 1 60 x",
    "CL.THROTTLE a 3 0 60",
    "CL.THROTTLE a -3 1 60",
    "CL.THROTTLE a 3 1",
    "CL.THROTTLE a 3 1 60 1 1",
    "TIDEGATE.CHECK default user:bob",
    "TIDEGATE.PEEK default user:bob 2",
    "TIDEGATE.REFUND default user:bob 1",
    "TIDEGATE.RESET default user:bob",
    "TIDEGATE.CHECK other user:bob",
    "PING",
    "ping text",
    "ECHO text",
    "ECHO",
    "SELECT 0",
    "CLIENT SETNAME name",
    "CLIENT GETNAME",
    "COMMAND COUNT",
    "COMMAND INFO ping nope",
    "CONFIG GET save",
    "INFO",
    "MULTI",
    "MULTI x",
    "EXEC",
    "DISCARD",
    "HELLO 2",
    "HELLO 3",
];
/// Less often, because they end what the others need.
const RARE: [&str; 7] = ["NOPE a b", "AUTH wrong", "EXEC x", "RESET", "QUIT", "POST / HTTP/1.1", "Host: a"];
/// Frames without a command or that are malformed.
const FRAMES: [&str; 5] = ["*0\r\n", "\r\n", "*x\r\n", "*1\r\n+PING\r\n", "ECHO \"a\r\n"];

fn encode(words: &str) -> Vec<u8> {
    let words: Vec<_> = words.split(' ').collect();
    let argument = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    let arguments: Vec<_> = words.iter().map(argument).collect();
    format!("*{}\r\n{}", words.len(), arguments.concat()).into_bytes()
}

fn command() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![
        24 => prop::sample::select(&COMMANDS[..]),
        3 => Just(AUTH),
        1 => prop::sample::select(&RARE[..]),
    ];
    prop_oneof![
        20 => words.clone().prop_map(encode),
        4 => words.prop_map(|words| format!("{words}\r\n").into_bytes()),
        1 => prop::sample::select(&FRAMES[..]).prop_map(|frame| frame.as_bytes().to_vec()),
    ]
}

/// The replies of a new service to these bytes, each of which arrive after the service has answered those before.
fn replies<'p>(parts: impl Iterator<Item = &'p [u8]>) -> String {
    let mut replies = Vec::new();
    run(async {
        let (mut client, stop) = connect_to(POLICY, 1 << 20);
        for part in parts {
            // The service may have closed the connection.
            let _ = client.write_all(part).await;
            // Time is paused: it passes when no task is ready.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.send_replace(true);
        replies = read_to_end(&mut client).await.0;
    });
    without_ids(&String::from_utf8(replies).expect("text"))
}

/// Every connection has another id, which is in the reply to `HELLO`.
fn without_ids(replies: &str) -> String {
    let mut parts = replies.split("$2\r\nid\r\n:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "$2\r\nid\r\n:" + part.trim_start_matches(|c: char| c.is_ascii_digit())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mixed_pipeline_in_any_split_has_the_replies_of_single_commands(
        is_authorized in prop::bool::weighted(0.8),
        mut commands in prop::collection::vec(command(), 0..40),
        splits in prop::collection::vec(1_usize..200, 0..12),
    ) {
        if is_authorized {
            commands.insert(0, encode(AUTH));
        }
        let single = replies(commands.iter().map(|command| &command[..]));
        let bytes = commands.concat();
        let mut rest = &bytes[..];
        let parts = splits.into_iter().chain([bytes.len()]).map(|len| {
            let (part, others) = rest.split_at(len.min(rest.len()));
            rest = others;
            part
        });
        prop_assert_eq!(&replies(parts), &single);
        prop_assert_eq!(&replies([&bytes[..]].into_iter()), &single);
    }
}
