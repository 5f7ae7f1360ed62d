//! Commands about the connection.

use std::sync::Arc;

use tidegate_telemetry::Protocol;

use super::client_state::RespClientState;
use super::frame::{Arguments, parse_integer};
use super::reply::ReplyWriter;
use crate::auth::{self, ListenerTokens};

/// The longest name of a connection.
const MAX_NAME: usize = 256;
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// `AUTH [user] password`: the user may have any name.
pub(super) fn auth(
    arguments: &Arguments<'_>,
    client: &mut RespClientState,
    tokens: &ListenerTokens,
    replies: &mut ReplyWriter<'_>,
) {
    let words = (arguments.len(), arguments.get(1), arguments.get(2));
    let ((2, Some(password), _) | (3, _, Some(password))) = words else {
        return replies.error("ERR syntax error");
    };
    match authenticate(client, tokens, password) {
        Ok(()) => replies.status("OK"),
        Err(error) => replies.error(error),
    }
}

fn authenticate(
    client: &mut RespClientState,
    tokens: &ListenerTokens,
    password: &[u8],
) -> Result<(), &'static str> {
    let Some(token) = tokens.required(Protocol::Resp) else {
        return Err("ERR AUTH <password> called without any password configured for the default user. \
                    Are you sure your configuration is correct?");
    };
    if !auth::is_authorized(tokens, Protocol::Resp, Some(password)) {
        return Err(WRONG_PASSWORD);
    }
    client.token = Some(Arc::clone(token));
    Ok(())
}

/// The options of `HELLO`.
#[derive(Debug, Default)]
struct HelloOptions<'a> {
    password: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`: the reply has the form of the new version.
pub(super) fn hello(
    arguments: &Arguments<'_>,
    client: &mut RespClientState,
    tokens: &ListenerTokens,
    replies: &mut ReplyWriter<'_>,
) {
    match try_hello(arguments, client, tokens) {
        Ok(()) => {
            replies.select_version(client.is_resp3);
            write_hello(client, replies);
        }
        Err(error) => replies.error(error),
    }
}

fn try_hello(
    arguments: &Arguments<'_>,
    client: &mut RespClientState,
    tokens: &ListenerTokens,
) -> Result<(), &'static str> {
    let version = match arguments.get(1).map(parse_integer) {
        None => i64::from(client.is_resp3) + 2,
        Some(Some(version @ 2..=3)) => version,
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version"),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range"),
    };
    let options = hello_options(arguments).ok_or("ERR Syntax error in HELLO")?;
    if let Some(password) = options.password {
        // A client with a password may connect where none is needed.
        if auth::needs_token(tokens, Protocol::Resp) {
            authenticate(client, tokens, password)?;
        }
    }
    if !client.is_authorized(tokens) {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                    HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                    select the RESP protocol version at the same time");
    }
    if let Some(name) = options.name {
        set_name(client, name)?;
    }
    client.is_resp3 = version == 3;
    Ok(())
}

fn hello_options<'a>(arguments: &Arguments<'a>) -> Option<HelloOptions<'a>> {
    let mut options = HelloOptions::default();
    let mut rest = arguments.from(2);
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"auth") {
            let _user = rest.next()?;
            options.password = Some(rest.next()?);
        } else if option.eq_ignore_ascii_case(b"setname") {
            options.name = Some(rest.next()?);
        } else {
            return None;
        }
    }
    Some(options)
}

fn write_hello(client: &RespClientState, replies: &mut ReplyWriter<'_>) {
    replies.map(7);
    replies.bulk("server");
    replies.bulk("tidegate");
    replies.bulk("version");
    replies.bulk(env!("CARGO_PKG_VERSION"));
    replies.bulk("proto");
    replies.integer(if client.is_resp3 { 3 } else { 2 });
    replies.bulk("id");
    replies.count(client.id);
    replies.bulk("mode");
    replies.bulk("standalone");
    replies.bulk("role");
    replies.bulk("master");
    replies.bulk("modules");
    replies.array(0);
}

/// `PING [message]`
pub(super) fn ping(arguments: &Arguments<'_>, replies: &mut ReplyWriter<'_>) {
    match (arguments.len(), arguments.get(1)) {
        (1, _) => replies.status("PONG"),
        (2, Some(message)) => replies.bulk(message),
        _ => replies.error("ERR wrong number of arguments for 'ping' command"),
    }
}

/// `SELECT index`: there is one database.
pub(super) fn select(arguments: &Arguments<'_>, replies: &mut ReplyWriter<'_>) {
    match arguments.get(1).map(parse_integer) {
        Some(Some(0)) => replies.status("OK"),
        Some(Some(_)) => replies.error("ERR DB index is out of range"),
        _ => replies.error("ERR value is not an integer or out of range"),
    }
}

/// `CLIENT subcommand`
pub(super) fn client(arguments: &Arguments<'_>, client: &mut RespClientState, replies: &mut ReplyWriter<'_>) {
    let subcommand = arguments.get(1).unwrap_or_default().to_ascii_lowercase();
    match (&*subcommand, arguments.len()) {
        (b"setname", 3) => match set_name(client, arguments.get(2).unwrap_or_default()) {
            Ok(()) => replies.status("OK"),
            Err(error) => replies.error(error),
        },
        (b"getname", 2) if client.name.is_empty() => replies.null(),
        (b"getname", 2) => replies.bulk(&client.name),
        (b"id", 2) => replies.count(client.id),
        (b"list" | b"info", 2..) => {
            let version = if client.is_resp3 { 3 } else { 2 };
            let mut line = format!("id={} db=0 resp={version} name=", client.id).into_bytes();
            line.extend_from_slice(&client.name);
            line.push(b'\n');
            replies.bulk(line);
        }
        // Clients send these when they connect; they have no effect here.
        (b"setinfo", 4) | (b"no-evict" | b"no-touch", 3) => replies.status("OK"),
        _ => {
            let mut text = b"ERR unknown subcommand or wrong number of arguments for 'client|".to_vec();
            text.extend(subcommand.iter().take(MAX_NAME));
            text.push(b'\'');
            replies.error(text);
        }
    }
}

fn set_name(client: &mut RespClientState, name: &[u8]) -> Result<(), &'static str> {
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.");
    }
    if name.len() > MAX_NAME {
        return Err("ERR Client names cannot be longer than 256 characters.");
    }
    client.name = name.to_vec();
    Ok(())
}
