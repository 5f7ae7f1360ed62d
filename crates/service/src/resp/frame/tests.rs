use super::*;

/// All commands of `bytes`, then the error or the number of bytes that are left.
fn parse_all(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Result<usize, FrameError>) {
    let (mut parser, mut commands, mut rest) = (CommandParser::default(), Vec::new(), bytes);
    loop {
        match parser.parse(rest) {
            Ok(Some(len)) => {
                commands.push(parser.arguments(rest).from(0).map(<[u8]>::to_vec).collect());
                rest = &rest[len..];
            }
            Ok(None) => return (commands, Ok(rest.len())),
            Err(error) => return (commands, Err(error)),
        }
    }
}

fn words(commands: &[&[&str]]) -> Vec<Vec<Vec<u8>>> {
    let command = |words: &&[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
    commands.iter().map(command).collect()
}

#[test]
fn frame_arrays_in_one_buffer_are_parsed_in_order() {
    let (commands, rest) = parse_all(b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n*1\r\n$4\r\nPI");
    assert_eq!(commands, words(&[&["PING"], &["ECHO", ""]]));
    assert_eq!(rest, Ok(10));
}

#[test]
fn frame_argument_with_line_ends_is_taken_by_its_length() {
    let (commands, rest) = parse_all(b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n");
    assert_eq!((commands, rest), (words(&[&["ECHO", "\r\n\r\n"]]), Ok(0)));
}

#[test]
fn frame_empty_arrays_and_lines_have_no_arguments() {
    let (commands, rest) = parse_all(b"*0\r\n*-1\r\n\r\n\nPING\n");
    assert_eq!((commands, rest), (words(&[&[], &[], &[], &[], &["PING"]]), Ok(0)));
}

#[test]
fn frame_inline_words_are_unquoted_as_in_redis() {
    let cases: [(&str, &[&str]); 6] = [
        ("  PING  \r\n", &["PING"]),
        ("ECHO \"a b\"\n", &["ECHO", "a b"]),
        ("ECHO 'it\\'s' \"\\x41\\n\\\"\"\n", &["ECHO", "it's", "A\n\""]),
        ("ECHO a\"b c\" d\n", &["ECHO", "ab c", "d"]),
        ("ECHO \"\" ''\n", &["ECHO", "", ""]),
        ("ECHO \"\\xzz\"\n", &["ECHO", "xzz"]),
    ];
    for (line, expected) in cases {
        assert_eq!(parse_all(line.as_bytes()), (words(&[expected]), Ok(0)), "{line:?}");
    }
}

#[test]
fn frame_malformed_bytes_are_errors() {
    let cases: [(&[u8], FrameError); 14] = [
        (b"*x\r\n", FrameError::ArgumentCount),
        (b"*\r\n", FrameError::ArgumentCount),
        (b"*+1\r\n", FrameError::ArgumentCount),
        (b"*1\rx", FrameError::ArgumentCount),
        (b"*65\r\n", FrameError::ArgumentCount),
        (b"*99999999", FrameError::ArgumentCount),
        (b"*1\r\n:1\r\n", FrameError::NoBulkString { found: b':' }),
        (b"*1\r\n$-1\r\n", FrameError::ArgumentLength),
        (b"*1\r\n$99999999", FrameError::ArgumentLength),
        (b"*1\r\n$65536\r\n", FrameError::TooLong),
        (b"*1\r\n$4\r\nPINGxx", FrameError::NoLineEnd),
        (b"*1\r\n$4\r\nPING\rx", FrameError::NoLineEnd),
        (b"ECHO \"a\n", FrameError::UnbalancedQuotes),
        (b"ECHO 'a'b\n", FrameError::UnbalancedQuotes),
    ];
    for (bytes, error) in cases {
        assert_eq!(parse_all(bytes), (Vec::new(), Err(error)), "{}", bytes.escape_ascii());
    }
    assert_eq!(parse_all("a ".repeat(65).as_bytes()).1, Ok(130));
    assert_eq!(parse_all(format!("{}\n", "a ".repeat(65)).as_bytes()).1, Err(FrameError::TooManyWords));
}

#[test]
fn frame_longer_than_the_maximum_is_rejected_before_it_arrives() {
    let longest = MAX_COMMAND - b"*1\r\n$65500\r\n\r\n".len();
    assert_eq!(parse_all(format!("*1\r\n${longest}\r\n").as_bytes()).1, Ok(b"*1\r\n$65500\r\n".len()));
    assert_eq!(parse_all(format!("*1\r\n${}\r\n", longest + 1).as_bytes()).1, Err(FrameError::TooLong));
    assert_eq!(parse_all(&vec![b'a'; MAX_COMMAND - 1]).1, Ok(MAX_COMMAND - 1));
    assert_eq!(parse_all(&vec![b'a'; MAX_COMMAND]).1, Err(FrameError::TooLong));
}
