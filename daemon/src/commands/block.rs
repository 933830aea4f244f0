//! `murmur block` and `murmur unblock`: whom a running daemon shuts out.

use std::path::Path;

use super::client::Client;
use crate::cli::BlockOptions;
use crate::console::{Console, print_line, quoted};
use crate::daemon::blocking::{BlockWish, Blocked};

pub(super) fn block(options: &BlockOptions) -> anyhow::Result<()> {
    ask(options, &BlockWish { block: options.peers.clone(), unblock: Vec::new() })
}

pub(super) fn unblock(options: &BlockOptions) -> anyhow::Result<()> {
    ask(options, &BlockWish { block: Vec::new(), unblock: options.peers.clone() })
}

/// Has the daemon carry out a wish, and shows who is shut out then.
fn ask(options: &BlockOptions, wish: &BlockWish) -> anyhow::Result<()> {
    let client = Client::find(options.address.as_deref(), options.run.as_deref())?;
    let blocked: Blocked = client.post("block", wish)?;
    if options.format == Console::Json {
        print_line(&serde_json::to_string(&blocked)?);
        return Ok(());
    }
    let Blocked { by_settings, by_command } = blocked;
    if by_settings.is_empty() && by_command.is_empty() {
        print_line("blocked      nobody");
    }
    by_settings.iter().for_each(|peer| print_line(&format!("blocked      {peer} · by the node's settings")));
    by_command.iter().for_each(|peer| print_line(&format!("blocked      {peer}")));
    if let Some(peer) = by_command.last() {
        print_line(&format!("undo         murmur unblock {peer}{}", asked(options)));
    }
    Ok(())
}

/// The options that say which daemon was asked, for a command that is to ask the same one.
fn asked(options: &BlockOptions) -> String {
    match (&options.run, &options.address) {
        (Some(run), _) => format!(" --run {}", quoted(run)),
        (None, Some(address)) => format!(" --address {}", quoted(Path::new(address))),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_daemon_is_named_again() {
        let options = |run: Option<&str>, address: Option<&str>| BlockOptions {
            peers: Vec::new(),
            run: run.map(Into::into),
            address: address.map(str::to_owned),
            format: Console::Text,
        };
        assert_eq!(asked(&options(None, None)), "");
        assert_eq!(asked(&options(None, Some("127.0.0.1:4781"))), " --address 127.0.0.1:4781");
        assert_eq!(asked(&options(Some("my run"), Some("127.0.0.1:4781"))), " --run 'my run'");
    }
}
