//! Commands about the server. Clients send them when they connect.

use super::command::{COMMANDS, CommandInfo};
use super::frame::Arguments;
use super::reply::ReplyWriter;

/// `COMMAND [COUNT | LIST | DOCS | INFO name…]`
pub(super) fn command(arguments: &Arguments<'_>, replies: &mut ReplyWriter<'_>) {
    let Some(subcommand) = arguments.get(1).map(<[u8]>::to_ascii_lowercase) else {
        return write_infos(COMMANDS.iter().map(Some), COMMANDS.len(), replies);
    };
    match &*subcommand {
        b"count" => replies.count(COMMANDS.len() as u64),
        b"list" => {
            replies.array(COMMANDS.len());
            for command in &COMMANDS {
                replies.bulk(command.name.to_ascii_lowercase());
            }
        }
        b"docs" => replies.map(0),
        b"info" if arguments.len() == 2 => write_infos(COMMANDS.iter().map(Some), COMMANDS.len(), replies),
        b"info" => write_infos(arguments.from(2).map(CommandInfo::find), arguments.len() - 2, replies),
        _ => replies.error("ERR unknown subcommand; use COMMAND [COUNT | LIST | DOCS | INFO name]"),
    }
}

fn write_infos(
    infos: impl Iterator<Item = Option<&'static CommandInfo>>,
    len: usize,
    replies: &mut ReplyWriter<'_>,
) {
    replies.array(len);
    for command in infos {
        let Some(CommandInfo { name, arity, flag, key, .. }) = command else {
            replies.null();
            continue;
        };
        replies.array(6);
        replies.bulk(name.to_ascii_lowercase());
        replies.integer(*arity);
        replies.array(1);
        replies.status(flag);
        // The first key, the last key, and the step between keys.
        for _ in 0..3 {
            replies.integer(*key);
        }
    }
}

/// `CONFIG GET name…`: nothing can be configured over this protocol.
pub(super) fn config(arguments: &Arguments<'_>, replies: &mut ReplyWriter<'_>) {
    if arguments.get(1).is_some_and(|subcommand| subcommand.eq_ignore_ascii_case(b"get")) {
        replies.map(0);
    } else {
        replies.error("ERR only CONFIG GET is supported; settings are in the policy");
    }
}

/// `INFO`: what clients check before they use a server.
pub(super) fn info(replies: &mut ReplyWriter<'_>) {
    replies.bulk(concat!(
        "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntidegate_version:",
        env!("CARGO_PKG_VERSION"),
        "\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n"
    ));
}
