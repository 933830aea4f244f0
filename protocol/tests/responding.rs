//! A responder's side of an exchange: what it sends when, and what it says again.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::bounds::REPLY_CACHE_MAX;
use murmur_protocol::message::{Propose, RejectReason, Standing};
use murmur_protocol::numerics::{Buffers, CodeWidth, EncodeJob, EncodeRole, Encoded, encode, merge};
use murmur_protocol::*;

use crate::driven::{PARAMETERS, first, layout, proposal, said};

const EXCHANGE: u64 = 1;
const NONCE: u64 = 1;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A responder; its worker does what it orders at once, and its trainer, too, unless it is in the middle of a step.
pub(crate) struct Responder {
    pub(crate) node: Node,
    is_in_step: bool,
    /// Where starters say that the swarm stands.
    pub(crate) progress_told: f64,
    pub(crate) now: Time,
}

impl Responder {
    pub(crate) fn new() -> Responder {
        let layout = Arc::new(layout(PARAMETERS));
        let config = Config::founder(&RunManifest::default());
        let me = PeerId::from_public_key([255; 32]);
        let node = Node::new(config, me, layout, 1, Time::ZERO);
        Responder { node, is_in_step: false, progress_told: 10.0, now: Time::ZERO }
    }

    /// What leaves the node.
    pub(crate) fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut leaving: Vec<Effect> = std::iter::from_fn(|| self.node.poll_effect()).collect();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.node.handle(self.now, event);
            while let Some(effect) = self.node.poll_effect() {
                match effect {
                    Effect::Trainer(TrainerOrder::TakeSnapshot { request, .. }) if !self.is_in_step => {
                        let (snapshot, report) = (vec![1.0; PARAMETERS].into(), TrainingReport::default());
                        events.push(Event::SnapshotTaken { request, snapshot, report });
                    }
                    Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
                        events.push(Event::Encoded { request, result: encode(&snapshot, &job, &Buffers::new()) });
                    }
                    Effect::Worker(WorkerOrder::Merge { request, job }) => {
                        events.push(Event::Merged { request, result: merge(&job, &Buffers::new()) });
                    }
                    effect => leaving.push(effect),
                }
            }
        }
        leaving
    }

    fn hear_proposal(&mut self, peer: PeerId, timeout: Duration) -> Vec<Effect> {
        self.hear_another_proposal(peer, EXCHANGE, timeout)
    }

    fn hear_another_proposal(&mut self, peer: PeerId, exchange: u64, timeout: Duration) -> Vec<Effect> {
        self.hear_proposal_of(peer, (exchange, NONCE), timeout)
    }

    fn hear_proposal_of(&mut self, peer: PeerId, (exchange, nonce): (u64, u64), timeout: Duration) -> Vec<Effect> {
        let standing = Standing { weight: 1000.0, clip: 1.0, gamma: 0.5, progress: self.progress_told };
        let deadline_ms = timeout.as_millis() as u32;
        let propose = Propose { nonce, deadline_ms, ..proposal(exchange, standing) };
        self.tell(Event::MessageReceived { peer, message: Message::Propose(propose) })
    }

    pub(crate) fn receive_steps(&mut self, peer: PeerId) -> Vec<Effect> {
        let header = TransferHeader::Scales { exchange: EXCHANGE };
        self.tell(Event::TransferReceived { peer, header, payload: encoded().scales })
    }

    pub(crate) fn receive_codes(&mut self, peer: PeerId) -> Vec<Effect> {
        let header = TransferHeader::ProposalCodes { exchange: EXCHANGE };
        self.tell(Event::TransferReceived { peer, header, payload: encoded().codes })
    }

    /// Meets a starter and accepts its proposal.
    pub(crate) fn meet(&mut self, peer: PeerId, timeout: Duration) {
        self.tell(Event::PeerConnected { peer, addresses: vec![] });
        let effects = self.hear_proposal(peer, timeout);
        assert!(accepts(&effects), "{effects:?}");
    }

    /// Takes part in an exchange: the transfer of our codes, and that of the news of our merge.
    pub(crate) fn take_part(&mut self, peer: PeerId, timeout: Duration) -> (TransferId, (TransferId, u64)) {
        self.meet(peer, timeout);
        let codes = reply(&self.receive_steps(peer)).expect("our codes leave");
        assert!(merged(&self.receive_codes(peer)).is_none(), "ours are on their way");
        (codes, merged(&self.tell(Event::TransferFinished { transfer: codes })).expect("then it merges"))
    }
}

/// A starter's steps and codes.
pub(crate) fn encoded() -> Encoded {
    let job = EncodeJob { role: EncodeRole::Starter { scales: None }, nonce: NONCE, width: CodeWidth::Sixteen };
    encode(&vec![1.0; PARAMETERS].into(), &job, &Buffers::new()).expect("own steps")
}

pub(crate) fn starter(key: usize) -> PeerId {
    PeerId::from_public_key([key as u8; 32])
}

fn accepts(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Accept(_), .. })))
}

/// The transfer of our codes.
pub(crate) fn reply(effects: &[Effect]) -> Option<TransferId> {
    first!(
        effects.iter(),
        Effect::Network(NetworkOrder::StartTransfer { transfer, header: TransferHeader::ReplyCodes { .. }, .. })
            => *transfer
    )
}

/// The transfer that tells of our merge, and the digest.
pub(crate) fn merged(effects: &[Effect]) -> Option<(TransferId, u64)> {
    first!(
        effects.iter(),
        Effect::Network(NetworkOrder::StartTransfer { transfer, header: TransferHeader::Merged { digest, .. }, .. })
            => (*transfer, *digest)
    )
}

fn broken(transfer: TransferId) -> Event {
    Event::TransferFailed { transfer, reason: "the way broke".to_owned() }
}

#[test]
fn our_codes_leave_before_the_starters_have_come() {
    let mut responder = Responder::new();
    responder.meet(starter(1), PATIENCE);
    let effects = responder.receive_steps(starter(1));
    assert!(merged(&effects).is_none(), "{effects:?}");
    let transfer = reply(&effects).expect("our codes leave");
    responder.tell(Event::TransferFinished { transfer });
    let effects = responder.receive_codes(starter(1));
    assert!(reply(&effects).is_none() && merged(&effects).is_some(), "{effects:?}");
}

#[test]
fn codes_that_overtake_their_steps_wait_for_them() {
    let mut responder = Responder::new();
    responder.meet(starter(1), PATIENCE);
    let effects = responder.receive_codes(starter(1));
    assert!(reply(&effects).is_none() && merged(&effects).is_none(), "{effects:?}");
    assert!(accepts(&responder.hear_proposal(starter(1), PATIENCE)), "it says that it lacks something");
    let effects = responder.receive_steps(starter(1));
    assert!(merged(&effects).is_none(), "{effects:?}");
    let transfer = reply(&effects).expect("our codes leave");
    assert!(merged(&responder.tell(Event::TransferFinished { transfer })).is_some());
}

#[test]
fn who_asks_again_is_sent_only_what_broke_off() {
    let mut responder = Responder::new();
    let (codes, (news, digest)) = responder.take_part(starter(1), PATIENCE);
    assert!(responder.hear_proposal(starter(1), PATIENCE).is_empty(), "all is on its way");
    assert!(responder.tell(Event::TransferFinished { transfer: codes }).is_empty());
    responder.tell(broken(news));
    let effects = responder.hear_proposal(starter(1), PATIENCE);
    let (again, same) = merged(&effects).expect("the news is sent again");
    assert!(same == digest && again != news && reply(&effects).is_none(), "{effects:?}");
    responder.tell(Event::TransferFinished { transfer: again });
    assert!(responder.receive_codes(starter(1)).is_empty(), "nor is anything merged again");
}

/// A starter's steps are few bytes: what they set off must not pile up.
#[test]
fn a_starter_orders_nothing_more_before_its_last_order_is_done() {
    let mut responder = Responder::new();
    responder.meet(starter(1), PATIENCE);
    responder.is_in_step = true;
    assert!(
        responder
            .receive_steps(starter(1))
            .iter()
            .any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::TakeSnapshot { .. })))
    );
    let effects = responder.hear_another_proposal(starter(1), EXCHANGE + 1, PATIENCE);
    assert_eq!(refusal(&effects), Some(RejectReason::Busy));
    responder.meet(starter(2), PATIENCE);
    responder.tell(Event::PeerDisconnected { peer: starter(1) });
    responder.tell(Event::PeerConnected { peer: starter(1), addresses: vec![] });
    let effects = responder.hear_another_proposal(starter(1), EXCHANGE + 1, PATIENCE);
    assert_eq!(refusal(&effects), Some(RejectReason::Busy), "nor by coming back");
}

fn refusal(effects: &[Effect]) -> Option<RejectReason> {
    first!(said(effects.iter()), (_, Message::Reject(reject)) => reject.reason)
}

/// A backup that runs with a clock that was set back counts from where its earlier life has been.
#[test]
fn a_starter_that_counts_anew_gets_nothing_of_what_its_earlier_life_was_sent() {
    let mut responder = Responder::new();
    responder.take_part(starter(1), PATIENCE);
    responder.tell(Event::PeerDisconnected { peer: starter(1) });
    responder.tell(Event::PeerConnected { peer: starter(1), addresses: vec![] });
    let effects = responder.hear_proposal_of(starter(1), (EXCHANGE, NONCE + 1), PATIENCE);
    assert_eq!(refusal(&effects), Some(RejectReason::Over));
    assert!(!accepts(&effects) && reply(&effects).is_none(), "{effects:?}");
    let effects = responder.hear_proposal(starter(1), PATIENCE);
    assert!(reply(&effects).is_some() || refusal(&effects).is_none(), "the same one again is answered as before");
    let effects = responder.hear_proposal_of(starter(1), (EXCHANGE + 1, NONCE + 2), PATIENCE);
    assert!(accepts(&effects), "a number that is new is taken: {effects:?}");
}

#[test]
fn codes_without_steps_hold_no_place() {
    let mut responder = Responder::new();
    responder.meet(starter(1), PATIENCE);
    responder.receive_codes(starter(1));
    let effects = responder.hear_another_proposal(starter(1), EXCHANGE + 1, PATIENCE);
    assert!(accepts(&effects), "it has begun anew: {effects:?}");
    responder.meet(starter(2), PATIENCE);
}

#[test]
fn a_reply_that_broke_off_leaves_again_when_the_codes_come() {
    let mut responder = Responder::new();
    responder.meet(starter(1), PATIENCE);
    let codes = reply(&responder.receive_steps(starter(1))).expect("our codes leave");
    responder.tell(broken(codes));
    let effects = responder.receive_codes(starter(1));
    assert!(merged(&effects).is_none(), "{effects:?}");
    let transfer = reply(&effects).expect("they leave again");
    assert!(merged(&responder.tell(Event::TransferFinished { transfer })).is_some());
}

#[test]
fn a_merge_that_its_starter_never_confirms_is_counted() {
    for is_confirmed in [true, false] {
        let mut responder = Responder::new();
        let (_, (news, _)) = responder.take_part(starter(1), PATIENCE);
        responder.tell(if is_confirmed { Event::TransferFinished { transfer: news } } else { broken(news) });
        responder.now = responder.now + PATIENCE;
        responder.tell(Event::TimePassed);
        let exchanges = responder.node.status().exchanges;
        assert_eq!((exchanges.completed_as_responder, exchanges.unconfirmed), (1, u64::from(!is_confirmed)));
    }
}

#[test]
fn news_on_their_way_outlive_those_that_have_arrived() {
    let mut responder = Responder::new();
    for key in 0..REPLY_CACHE_MAX {
        let (codes, (news, _)) = responder.take_part(starter(key), PATIENCE);
        [codes, news].into_iter().for_each(|transfer| drop(responder.tell(Event::TransferFinished { transfer })));
    }
    // The least patient starter of all, so that its deadline comes first.
    let last = starter(REPLY_CACHE_MAX);
    let (_, (news, _)) = responder.take_part(last, PATIENCE / 3);
    responder.tell(broken(news));
    let effects = responder.hear_proposal(last, PATIENCE / 3);
    assert!(merged(&effects).is_some(), "what broke off is sent again: {effects:?}");
    let forgotten = (0..REPLY_CACHE_MAX).filter(|key| {
        let effects = responder.hear_proposal(starter(*key), PATIENCE);
        effects.iter().any(|effect| match effect {
            Effect::Network(NetworkOrder::Send { message: Message::Reject(reject), .. }) => {
                reject.reason == RejectReason::Over
            }
            _ => false,
        })
    });
    assert_eq!(forgotten.count(), 1, "the cache is as bounded as before");
}

/// How long a starter may take it says itself: two that said nothing more kept all others out for minutes.
#[test]
fn starters_that_send_nothing_more_give_way() {
    let mut responder = Responder::new();
    let for_ever = Duration::from_millis(u32::MAX.into());
    [1, 2].into_iter().for_each(|key| responder.meet(starter(key), for_ever));
    let transfer = reply(&responder.receive_steps(starter(1))).expect("our codes leave");
    [3, 4]
        .into_iter()
        .for_each(|key| drop(responder.tell(Event::PeerConnected { peer: starter(key), addresses: vec![] })));
    let mut seconds = 0;
    while refusal(&responder.hear_proposal(starter(3), PATIENCE)) == Some(RejectReason::Busy) {
        assert!(seconds < 30, "it waits for who says nothing");
        responder.now = responder.now + Duration::from_secs(1);
        seconds += 1;
    }
    assert!(seconds > 2, "a starter on a slow line has time");
    assert_eq!(refusal(&responder.hear_proposal(starter(4), PATIENCE)), Some(RejectReason::Busy), "3 has just begun");
    responder.receive_codes(starter(1));
    let effects = responder.tell(Event::TransferFinished { transfer });
    assert!(merged(&effects).is_some(), "who has sent something keeps its place");
}

impl Responder {
    /// Lets time pass, as a driver does that is there all the time.
    fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(deadline) = self.node.next_deadline().filter(|deadline| *deadline < end) {
            self.now = self.now.max(deadline);
            self.tell(Event::TimePassed);
        }
        self.now = end;
    }

    /// Waits until one who asks again and again is no longer told that there is no place; how many seconds that took.
    fn seconds_until_a_place_is_free(&mut self, peer: PeerId) -> u64 {
        self.tell(Event::PeerConnected { peer, addresses: vec![] });
        let mut seconds = 0;
        while refusal(&self.hear_proposal(peer, PATIENCE)) == Some(RejectReason::Busy) {
            assert!(seconds < 3600, "it waits for who says nothing");
            self.wait(Duration::from_secs(1));
            seconds += 1;
        }
        seconds
    }
}

/// Two that took the reply and sent nothing more kept all others out for as long as they said, hours with a large model.
#[test]
fn starters_that_keep_their_codes_to_themselves_give_way_and_it_is_held_against_them() {
    // A reply that was never taken counts as well: who breaks it off could ask for it again and again.
    for is_taken in [true, false] {
        let mut responder = Responder::new();
        for key in [1, 2] {
            responder.meet(starter(key), Duration::from_millis(u32::MAX.into()));
            let transfer = reply(&responder.receive_steps(starter(key))).expect("our codes leave");
            responder.tell(if is_taken { Event::TransferFinished { transfer } } else { broken(transfer) });
        }
        let seconds = [3, 4].map(|key| responder.seconds_until_a_place_is_free(starter(key)));
        assert!(seconds[0] < 30 && seconds[1] == 0, "{seconds:?}");
        let offences = responder.node.status().offences;
        assert!([1, 2].iter().all(|key| offences.get(&starter(*key)) == Some(&Misbehaviour::Stalled)), "{offences:?}");
        assert!(merged(&responder.receive_codes(starter(1))).is_none(), "its exchange is over");
    }
}

/// Our codes are read, and so slowly that they are never through.
#[test]
fn starters_that_read_our_codes_too_slowly_give_way() {
    let mut responder = Responder::new();
    for key in [1, 2] {
        responder.meet(starter(key), Duration::from_millis(u32::MAX.into()));
        reply(&responder.receive_steps(starter(key))).expect("our codes leave");
    }
    let seconds = [3, 4].map(|key| responder.seconds_until_a_place_is_free(starter(key)));
    assert!((15..30).contains(&seconds[0]), "a slow line has time, and no more: {seconds:?}");
    assert!(seconds[1] == 0, "{seconds:?}");
    assert!(responder.node.status().offences.is_empty(), "a line may be as slow");
}

/// Nothing of it is ever read, and it is asked for without end.
#[test]
fn starters_that_break_our_codes_off_and_ask_for_them_again_give_way() {
    let hours = Duration::from_millis(u32::MAX.into());
    let mut responder = Responder::new();
    let replies = |responder: &mut Responder| {
        [1, 2].map(|key| reply(&responder.hear_proposal(starter(key), hours)).expect("our codes leave again"))
    };
    for key in [1, 2] {
        responder.meet(starter(key), hours);
        let transfer = reply(&responder.receive_steps(starter(key))).expect("our codes leave");
        responder.tell(broken(transfer));
    }
    responder.tell(Event::PeerConnected { peer: starter(3), addresses: vec![] });
    let mut seconds = 0;
    loop {
        let sent = replies(&mut responder);
        if refusal(&responder.hear_proposal(starter(3), PATIENCE)) != Some(RejectReason::Busy) {
            break;
        }
        sent.into_iter().for_each(|transfer| drop(responder.tell(broken(transfer))));
        responder.wait(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 30, "two of them keep all others out");
    }
    assert!(responder.node.status().offences.is_empty(), "a bad line breaks transfers off as well");
}

/// A node that stood still for 22 s accused an honest starter, whose codes had come meanwhile, of what was its own delay.
#[test]
fn who_was_absent_itself_holds_nothing_against_anybody() {
    let mut responder = Responder::new();
    for key in [1, 2] {
        responder.meet(starter(key), Duration::from_millis(u32::MAX.into()));
        let transfer = reply(&responder.receive_steps(starter(key))).expect("our codes leave");
        responder.tell(Event::TransferFinished { transfer });
    }
    responder.tell(Event::PeerConnected { peer: starter(3), addresses: vec![] });
    responder.now = responder.now + Duration::from_secs(22);
    assert_eq!(refusal(&responder.hear_proposal(starter(3), PATIENCE)), Some(RejectReason::Busy));
    assert!(merged(&responder.receive_codes(starter(1))).is_some(), "its codes were here all the time");
    assert!(responder.node.status().offences.is_empty());
    let seconds = [4, 5].map(|key| responder.seconds_until_a_place_is_free(starter(key)));
    assert!(seconds[0] == 0 && seconds[1] < 30, "who goes on to wait gives way: {seconds:?}");
}

/// Over a slow line codes take minutes, however quick others are.
#[test]
fn a_starter_on_a_slow_line_keeps_its_place_while_its_codes_are_on_their_way() {
    let mut responder = Responder::new();
    [1, 2].into_iter().for_each(|key| responder.meet(starter(key), 10 * PATIENCE));
    responder.wait(Duration::from_secs(10));
    for key in [1, 2] {
        let transfer = reply(&responder.receive_steps(starter(key))).expect("our codes leave");
        responder.wait(Duration::from_secs(2));
        responder.tell(Event::TransferFinished { transfer });
    }
    responder.tell(Event::PeerConnected { peer: starter(3), addresses: vec![] });
    for _ in 0..300 {
        assert_eq!(refusal(&responder.hear_proposal(starter(3), PATIENCE)), Some(RejectReason::Busy));
        responder.wait(Duration::from_secs(1));
    }
    assert!(merged(&responder.receive_codes(starter(1))).is_some(), "its codes are merged when they come");
    assert!(responder.node.status().offences.is_empty());
}
