//! Single commands to a Redis.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::wait::DEADLINE;

/// Sends one command over a connection of its own. Returns the reply as text, the items of a list on a line each; an error
/// reply begins with its code.
pub(super) fn send_command(address: SocketAddr, arguments: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut request = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        request.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
    }
    stream.write_all(request.as_bytes())?;
    let mut lines = Vec::new();
    read_reply(&mut BufReader::new(stream), &mut lines)?;
    Ok(lines.join("\n"))
}

fn read_reply(from: &mut impl BufRead, lines: &mut Vec<String>) -> io::Result<()> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let number = line.get(1..).and_then(|digits| digits.parse::<usize>().ok());
    match (line.chars().next(), number) {
        (Some('*'), count) => {
            for _ in 0..count.unwrap_or(0) {
                read_reply(from, lines)?;
            }
        }
        (Some('$'), Some(length)) => {
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            lines.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        (Some('$'), None) => lines.push(String::new()),
        _ => lines.push(line.get(1..).unwrap_or_default().to_owned()),
    }
    Ok(())
}
