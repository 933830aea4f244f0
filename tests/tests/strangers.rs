//! What strangers send to a daemon: it neither fills its log nor stops its work.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::Stdio;

use murmur_protocol::handshake::Greeting;
use murmur_protocol::text::is_unprintable;
use murmur_protocol::{Address, PeerId, RunId, RunManifest, Ticket};
use murmur_tests::{TINY_RUN, murmur, run};

use crate::MURMUR;
use crate::place::Place;
use crate::raw::Raw;

/// Packets of the size that QUIC wants of a first one (RFC 9000, 14.1).
const INITIAL_BYTES: usize = 1200;

/// A first packet of QUIC version 1 by its header, with arbitrary bytes where its content should be.
fn initial(number: u64) -> [u8; INITIAL_BYTES] {
    let mut packet = [0; INITIAL_BYTES];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut packet {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    // Long header, Initial; version 1; two connection ids of 8 bytes; no token; the rest as its length.
    packet[..6].copy_from_slice(&[0xc0, 0, 0, 0, 1, 8]);
    packet[14] = 8;
    packet[23] = 0;
    packet[24..26].copy_from_slice(&(0x4000 | (INITIAL_BYTES as u16 - 26)).to_be_bytes());
    packet
}

#[test]
fn arbitrary_first_packets_of_quic_fill_no_log_and_keep_nobody_out() {
    let place = Place::new(TINY_RUN);
    let arguments = ["start", place.run_file(), "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"];
    let founder = place.spawn("founder", &arguments);
    let address = founder.address_over("/udp/");
    let port = address.split('/').nth(4).expect("a port");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for number in 0..2000 {
        socket.send_to(&initial(number), format!("127.0.0.1:{port}")).expect("it is sent");
    }
    let member = place.spawn("member", &["join", "--bootstrap", &address]);
    member.wait_for("an exchange", |report| report.exchanges_completed > 0);
    for daemon in [member, founder] {
        let finished = daemon.stop();
        assert!(finished.status.success() && !finished.errors.contains("WARN"), "{}", finished.errors);
    }
}

/// A ticket whose address holds what a terminal obeys and a line that looks like murmur's own: ours refuses to make one, so
/// the bytes of a sound one are changed.
fn forged_ticket() -> String {
    let (sound, forged) = ("/dns4/aaaaaaaaaaaaaaaaaaaaaaa/tcp/1", "/dns4/\u{1b}]0;x\u{7}\u{1b}[2J\nerror: run m/tcp/1");
    assert_eq!(sound.len(), forged.len());
    let address = Address::new(sound).expect("short");
    let (run, peer) = (RunId([3; 32]), PeerId::from_public_key([9; 32]));
    let text = Ticket { run, peer, addresses: vec![address], others: Vec::new(), secret: None }.to_string();
    let mut bytes = bs58::decode(text.strip_prefix("murmur1").expect("a ticket")).into_vec().expect("base58");
    bytes.truncate(bytes.len() - 4);
    let at = bytes.windows(sound.len()).position(|window| window == sound.as_bytes()).expect("it is in there");
    bytes[at..at + sound.len()].copy_from_slice(forged.as_bytes());
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(&checksum.as_bytes()[..4]);
    format!("murmur1{}", bs58::encode(bytes).into_string())
}

#[test]
fn a_forged_ticket_writes_nothing_that_a_terminal_obeys() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let directory = folder.path().join("node").display().to_string();
    let ticket = forged_ticket();
    for command in [&["join", &ticket, "--data-dir", &directory][..], &["doctor", &ticket]] {
        let output = run(MURMUR, command);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said:?}");
        assert!(!said.contains(['\u{1b}', '\u{7}']) && !said.contains("\nerror: run"), "{said:?}");
    }
}

/// What a terminal obeys, and a line that looks like murmur's own.
const INJECTED: &str = "\u{1b}]0;x\u{7}\u{1b}[2J\u{9b}31m\u{202e}\nerror: run m";

/// Greetings that are refused, each with what is injected in another place of them.
fn hostile_greetings() -> Vec<Greeting> {
    let sound = RunManifest::default().canonical_text();
    let as_text = INJECTED.replace('\n', "\\n").replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007");
    let manifests = [
        INJECTED.to_owned(),
        format!("{sound}\n\"{as_text}\" = 1\n"),
        format!("{sound}\n[\"{as_text}\"]\n"),
        sound.replacen("kind = \"transformer\"", &format!("kind = \"{as_text}\""), 1),
        sound.replacen("name = \"", &format!("name = \"{as_text}"), 1),
    ];
    assert!(manifests.iter().all(|manifest| *manifest != sound), "each has something injected:\n{sound}");
    let join = |manifest: &String, address: Option<Address>| Greeting::Join {
        proof: None,
        manifest: manifest.clone(),
        addresses: address.into_iter().collect(),
    };
    manifests.iter().map(|manifest| join(manifest, None)).collect()
}

#[test]
fn greetings_of_strangers_write_nothing_that_a_terminal_obeys() {
    let place = Place::new(TINY_RUN);
    let mut founder = murmur(MURMUR)
        .args(["start", place.run_file(), "--data-dir", &place.at("node").display().to_string()])
        .args(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off", "--log", "debug", "--until-stdin-closes"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut errors = BufReader::new(founder.stderr.take().expect("a pipe"));
    let mut said = String::new();
    let address = loop {
        let from = said.len();
        assert!(errors.read_line(&mut said).expect("UTF-8") > 0, "it ends: {said}");
        if let Some(address) = said[from..].strip_prefix("listening") {
            break address.trim().parse().expect("an address");
        }
    };
    let greetings = hostile_greetings();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let strangers: Vec<PeerId> = runtime.block_on(async {
        let mut strangers = Vec::new();
        for greeting in &greetings {
            let stranger = Raw::connect(libp2p::Multiaddr::clone(&address)).await;
            stranger.greet(greeting).await;
            strangers.push(stranger.peer);
        }
        strangers
    });
    drop(founder.stdin.take());
    errors.read_to_string(&mut said).expect("UTF-8");
    assert!(founder.wait().expect("it was started").success(), "{said}");
    assert!(strangers.iter().all(|peer| said.contains(&peer.short().to_string())), "each is told of: {said}");
    assert!(said.lines().all(|line| !line.contains(is_unprintable) && !line.starts_with("error: run")), "{said:?}");
}
