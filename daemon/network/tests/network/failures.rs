//! Memory does not grow with failures: a peer breaks off a thousand transfers each way. In a process of its own, because
//! the other tests of this binary take memory, too.

use std::process::Command;

use futures::AsyncReadExt;
use murmur_protocol::codec;
use murmur_protocol::message::TransferHeader;

use crate::hostile::{Hostile, announced, wait_ended, write, write_frame};
use crate::node::{Node, Over, payload};

/// Names this test to itself, in the process of its own.
const INSIDE: &str = "MURMUR_TEST_COUNTS_MEMORY";

const TEST: &str = "failures::a_thousand_broken_transfers_hold_no_memory";

/// Broken transfers each way before memory is looked at, and after.
const BEFORE: u64 = 100;
const AFTER: u64 = 1000;

/// What every transfer announces, and how much of it comes before the peer breaks off.
const ANNOUNCED_BYTES: usize = 1 << 20;
const SENT_BYTES: usize = 100_000;

/// How much the peer reads of what the node sends: it confirms nothing, so no more would come than a first window.
const READ_BYTES: usize = 10_000;

/// What the allocator may keep from one look to the next, in bytes: eight of the transfers, where two thousand were
/// begun.
const GROWTH_MAX: i64 = 8 * ANNOUNCED_BYTES as i64;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_broken_transfers_hold_no_memory() {
    if resident_bytes().is_none() {
        println!("skipped: this system does not tell how much memory a process holds");
        return;
    }
    if std::env::var_os(INSIDE).is_some() {
        return break_transfers().await;
    }
    let program = std::env::current_exe().expect("a test has a file");
    let output = Command::new(program).args(["--exact", TEST, "--nocapture"]).env(INSIDE, "1").output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

async fn break_transfers() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let (mut hostile, _control) = Hostile::join(&mut node).await;
        break_some(&mut node, &mut hostile, 0..BEFORE).await;
        let before = resident_bytes().expect("it was told before");
        break_some(&mut node, &mut hostile, BEFORE..BEFORE + AFTER).await;
        let grown = resident_bytes().expect("it was told before") - before;
        println!("{over:?}: {before} bytes after {BEFORE} broken transfers each way, {grown} more after {AFTER} more");
        assert!(grown < GROWTH_MAX, "{grown} bytes more after {AFTER} broken transfers each way over {over:?}");
    }
}

async fn break_some(node: &mut Node, hostile: &mut Hostile, numbers: std::ops::Range<u64>) {
    let sent = payload(ANNOUNCED_BYTES, 3);
    for number in numbers {
        // One to the node, which the sender breaks off.
        let mut bulk = hostile.open_bulk().await;
        write_frame(&mut bulk, &codec::encode(&TransferHeader::ProposalCodes { exchange: number })).await;
        write(&mut bulk, &announced(ANNOUNCED_BYTES as u64)).await;
        write(&mut bulk, &sent.bytes()[..SENT_BYTES]).await;
        futures::AsyncWriteExt::close(&mut bulk).await.expect("closed");
        wait_ended(&mut bulk).await;
        // One from the node, which the receiver breaks off.
        node.transfer(number, hostile.peer, sent.clone());
        let mut bulk = hostile.streams.bulk.recv().await.expect("the node opens a stream");
        bulk.read_exact(&mut vec![0; READ_BYTES]).await.expect("the node sends");
        drop(bulk);
        assert!(node.wait_transfer_end(number).await.is_err(), "nobody has acknowledged it");
    }
}

/// Memory that this process holds, without pages of its own file; nothing where the system does not tell.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse::<i64>().ok().map(|kilobytes| kilobytes * 1024)
}
