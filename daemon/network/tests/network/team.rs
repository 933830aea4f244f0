//! Machines of a team over loopback: a captain that has the helper's line, strangers, machines that are gone.

use std::time::Duration;

use libp2p::identity::Keypair;
use murmur_network::team::{Closed, DialError, Taken, TeamLink, TeamListener, TeamWord, Unsent, dial};
use murmur_network::{Caps, Throttle, TrafficCounter, peer_id};
use murmur_protocol::{Address, HelperLine, Payload, Secret};
use tokio::time::{Instant, timeout};

/// More than any step of a test takes.
const LIMIT: Duration = Duration::from_secs(30);

const BODY_BYTES_MAX: u64 = 8 << 20;

struct Helper {
    listener: TeamListener,
    line: HelperLine,
    taken: Taken,
}

async fn helper(listen: &str) -> Helper {
    helper_with(listen, Throttle::default()).await
}

async fn helper_with(listen: &str, throttle: Throttle) -> Helper {
    let (identity, taken, secret) = (Keypair::generate_ed25519(), Taken::default(), Secret::from_bytes([7; 32]));
    let listen = [listen.parse().expect("an address")];
    let about = (taken.clone(), &TrafficCounter::default(), &throttle);
    let listener = TeamListener::start(&identity, &listen, secret.clone(), about, BODY_BYTES_MAX).await;
    let listener = listener.expect("a free port");
    let addresses = listener.addresses().iter().filter_map(|address| Address::new(address.to_string())).collect();
    Helper { line: HelperLine { helper: peer_id(&identity), addresses, secret }, listener, taken }
}

async fn dialed(captain: &Keypair, line: &HelperLine) -> Result<TeamLink, DialError> {
    dial(captain, line, (&TrafficCounter::default(), &Throttle::default()), BODY_BYTES_MAX).await
}

/// The captain's link, and the helper's.
async fn joined(helper: &mut Helper, captain: &Keypair) -> (TeamLink, TeamLink) {
    let line = helper.line.clone();
    let (here, there) = tokio::join!(dialed(captain, &line), timeout(LIMIT, helper.listener.next()));
    (here.expect("let in"), there.expect("in time").expect("a captain"))
}

fn word(header: &[u8], bytes: usize) -> TeamWord {
    TeamWord { header: header.to_vec(), body: Payload::from(vec![header[0]; bytes]) }
}

async fn heard(link: &mut TeamLink) -> Result<TeamWord, Closed> {
    timeout(LIMIT, link.next()).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captain_and_its_helper_speak_both_ways_over_tcp_and_quic() {
    for listen in ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"] {
        let (mut helper, captain) = (helper(listen).await, Keypair::generate_ed25519());
        let (mut here, mut there) = joined(&mut helper, &captain).await;
        assert_eq!((here.peer, there.peer), (helper.line.helper, peer_id(&captain)));
        for (number, bytes) in [0, 1, 100_000, 5 << 20].into_iter().enumerate() {
            let said = word(&[number as u8 + 1], bytes);
            here.sender().send(said.clone()).await.expect("sent");
            assert_eq!(heard(&mut there).await, Ok(said.clone()));
            there.sender().send(said.clone()).await.expect("sent");
            assert_eq!(heard(&mut here).await, Ok(said));
        }
    }
}

/// Bytes a second from one side to the other.
async fn speed(from: &TeamLink, to: &mut TeamLink) -> f64 {
    const BYTES: usize = 1_000_000;
    let begin = Instant::now();
    let sender = from.sender();
    for number in 1..=3 {
        sender.send(word(&[number], BYTES / 3)).await.expect("sent");
    }
    for number in 1..=3 {
        assert_eq!(heard(to).await, Ok(word(&[number], BYTES / 3)));
    }
    BYTES as f64 / begin.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_and_received_keeps_to_the_caps_of_each_machine() {
    let throttle = |upload, download| Throttle::new(Caps { upload, download });
    // The helper may send half a megabyte a second and receive a quarter of it, so the captain sends no more.
    let mut helper = helper_with("/ip4/127.0.0.1/tcp/0", throttle(Some(500_000), Some(250_000))).await;
    let captain = Keypair::generate_ed25519();
    let (here, mut there) = joined(&mut helper, &captain).await;
    let down = speed(&here, &mut there).await;
    // What waits in buffers has been sent before it is received.
    assert!((100_000.0..300_000.0).contains(&down), "{down} bytes a second to the helper");
    let mut here = here;
    let up = speed(&there, &mut here).await;
    assert!((200_000.0..600_000.0).contains(&up), "{up} bytes a second from the helper");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_the_secret_is_not_let_in() {
    let helper = helper("/ip4/127.0.0.1/tcp/0").await;
    let stranger = Keypair::generate_ed25519();
    let line = HelperLine { secret: Secret::from_bytes([8; 32]), ..helper.line.clone() };
    assert_eq!(dialed(&stranger, &line).await.err(), Some(DialError::OtherMachine));
    // And a helper that does not know it is no helper, whoever it says it is.
    let other = HelperLine { helper: peer_id(&stranger), ..helper.line.clone() };
    let error = dialed(&Keypair::generate_ed25519(), &other).await.err();
    assert!(matches!(error, Some(DialError::OtherMachine | DialError::Unreachable(_))), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_helper_has_one_captain_which_may_come_again() {
    let mut helper = helper("/ip4/127.0.0.1/tcp/0").await;
    let (first, second) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let (here, there) = joined(&mut helper, &first).await;
    assert_eq!(dialed(&second, &helper.line).await.err(), Some(DialError::Taken));
    drop((here, there));
    let (here, there) = joined(&mut helper, &first).await;
    assert_eq!(
        dialed(&second, &helper.line).await.err(),
        Some(DialError::Taken),
        "its stage is kept for the first one"
    );
    drop((here, there));
    helper.taken.set(None);
    joined(&mut helper, &second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_notices_that_the_other_is_gone() {
    let mut helper = helper("/ip4/127.0.0.1/tcp/0").await;
    let captain = Keypair::generate_ed25519();
    let (mut here, there) = joined(&mut helper, &captain).await;
    there.sender().send(word(b"farewell", 10)).await.expect("sent");
    drop(there);
    assert_eq!(heard(&mut here).await, Ok(word(b"farewell", 10)), "what was said before still arrives");
    heard(&mut here).await.expect_err("it is gone");
    let sender = here.sender();
    drop(here);
    let (again, mut there) = joined(&mut helper, &captain).await;
    assert_eq!(sender.try_send(word(b"a", 0)), Err(Unsent::Closed));
    drop(again);
    heard(&mut there).await.expect_err("it is gone");
}

/// Sixteen of them took all places of greetings for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sockets_do_not_keep_a_captain_out() {
    let mut helper = helper("/ip4/127.0.0.1/tcp/0").await;
    let place = helper.line.addresses[0].to_string();
    let port = place.rsplit('/').next().and_then(|port| port.parse().ok()).expect("a port");
    let connect = || std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).expect("it listens");
    let _silent: Vec<_> = (0..40).map(|_| connect()).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begin = Instant::now();
    joined(&mut helper, &Keypair::generate_ed25519()).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_makes_the_other_wait_and_nothing_grows() {
    let mut helper = helper("/ip4/127.0.0.1/tcp/0").await;
    let (here, mut there) = joined(&mut helper, &Keypair::generate_ed25519()).await;
    let (sender, begin, mut sent) = (here.sender(), Instant::now(), 0_usize);
    let mut full_since = None;
    // Until nothing has been taken for a while: what both ends and the system hold is full.
    while full_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(1)) {
        assert!(begin.elapsed() < LIMIT, "{sent} words of a megabyte are held");
        match sender.try_send(word(b"x", 1 << 20)) {
            Ok(()) => (sent, full_since) = (sent + 1, None),
            Err(Unsent::Full) => {
                full_since.get_or_insert_with(Instant::now);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(Unsent::Closed) => panic!("it waits"),
        }
    }
    assert!(sent < 300, "{sent}");
    for _ in 0..sent {
        assert_eq!(heard(&mut there).await.expect("a word").body.len(), 1 << 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_that_is_too_long_ends_the_connection() {
    let mut helper = helper("/ip4/127.0.0.1/tcp/0").await;
    let (here, mut there) = joined(&mut helper, &Keypair::generate_ed25519()).await;
    here.sender().send(word(b"x", BODY_BYTES_MAX as usize + 1)).await.expect("taken by the queue");
    let closed = heard(&mut there).await.expect_err("too long");
    assert!(closed.to_string().contains("are the most"), "{closed}");
}
