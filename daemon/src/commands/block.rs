//! `murmur block` and `murmur unblock`: whom a running daemon shuts out.

use std::path::Path;

use murmur_protocol::PeerId;

use super::client::Client;
use crate::cli::BlockOptions;
use crate::console::{Console, print_line, quoted};
use crate::daemon::blocking::{BlockWish, Blocked};
use crate::failure::{ExitCode, Failure};

pub(super) fn block(options: &BlockOptions) -> anyhow::Result<()> {
    ask(options, &BlockWish { block: options.peers.clone(), unblock: Vec::new() })
}

pub(super) fn unblock(options: &BlockOptions) -> anyhow::Result<()> {
    ask(options, &BlockWish { block: Vec::new(), unblock: options.peers.clone() })
}

/// Has the daemon carry out a wish, and shows who is shut out then.
fn ask(options: &BlockOptions, wish: &BlockWish) -> anyhow::Result<()> {
    options.peers.iter().try_for_each(|peer| check_peer(peer))?;
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

/// Whether this may be a peer; whether there is such a one the daemon knows.
///
/// # Errors
/// As `murmur start --block` refuses it.
fn check_peer(text: &str) -> Result<(), Failure> {
    // Ids are written in base 58, which has none of these four.
    let is_digit = |character: char| character.is_ascii_alphanumeric() && !"0OIl".contains(character);
    if (text.len() == 8 && text.chars().all(is_digit)) || text.parse::<PeerId>().is_ok() {
        return Ok(());
    }
    Err(Failure::new(ExitCode::Settings, format!("{text:?} is no peer")).hint(
        "it takes a peer's id, or the last eight characters of one, as `murmur status` shows them; a run goes after --run",
    ))
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
    fn what_cannot_be_a_peer_is_refused_with_the_code_of_a_wrong_value() {
        for peer in ["12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X", "Nft9HyQ6"] {
            assert!(check_peer(peer).is_ok(), "{peer}");
        }
        for wrong in ["xyz", "stories", "", "Nft9Hy0l", "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6"] {
            let failure = check_peer(wrong).expect_err("none");
            assert_eq!(failure.code(), ExitCode::Settings, "{failure}");
            assert!(
                failure.remedy().contains("the last eight characters of one") && failure.to_string().contains(wrong)
            );
        }
    }

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
