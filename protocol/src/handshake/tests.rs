//! Handshakes between two sides, message by message.

use super::*;
use crate::codec;

/// One side of a handshake.
struct Side {
    peer: PeerId,
    manifest: RunManifest,
    secret: Option<Secret>,
}

impl Side {
    fn new(key: u8, secret: Option<u8>) -> Side {
        let secret = secret.map(|byte| Secret::from_bytes([byte; 32]));
        Side { peer: PeerId::from_public_key([key; 32]), manifest: RunManifest::default(), secret }
    }

    fn credentials(&self) -> Credentials {
        Credentials { run: self.manifest.run_id(), secret: self.secret.clone() }
    }

    fn greeting(&self, proof: Option<Proof>) -> Greeting {
        Greeting::Join { proof, manifest: self.manifest.canonical_text(), addresses: vec![] }
    }
}

/// What both sides make of each other: first the dialer, then the listener.
type Judgements = (Result<Vec<Address>, Refusal>, Result<Visitor, Refusal>);

/// A whole handshake, with everything that was said.
fn shake(dialer: &Side, listener: &Side) -> (Judgements, String) {
    let hello = Hello::new([1; 32]);
    let dialer_nonce = hello.nonce().expect("sound");
    let ends = (dialer.peer, listener.peer);
    let parties = Parties { dialer: ends.0, listener: ends.1, dialer_nonce, listener_nonce: [2; 32] };
    let challenge = challenge(&listener.credentials(), &parties, Stamps::default());
    let judged = judge_challenge(Some(&dialer.credentials()), ends, dialer_nonce, &challenge);
    let (greeting, given_up) = match judged {
        Ok(proof) => (dialer.greeting(proof), None),
        Err((refusal, word)) => (Greeting::Leave(word.expect("it was not turned away")), Some(refusal)),
    };
    let said = format!("{challenge:?} {greeting:?}");
    let judgement = judge_greeting(&listener.manifest, &listener.credentials(), &parties, greeting);
    let answer = answer(&judgement, &listener.manifest.canonical_text(), vec![]);
    let said = format!("{said} {answer:?}");
    let verdict = match given_up {
        Some(refusal) => Err(refusal),
        None => judge_answer(&dialer.manifest, answer),
    };
    ((verdict, judgement), said)
}

#[test]
fn members_of_one_run_welcome_each_other() {
    for secret in [None, Some(7)] {
        let ((verdict, judgement), _) = shake(&Side::new(1, secret), &Side::new(2, secret));
        assert_eq!((verdict, judgement), (Ok(vec![]), Ok(Visitor::Member(vec![]))));
    }
}

#[test]
fn a_stranger_to_a_closed_run_is_refused_on_both_sides_and_hears_nothing_of_the_run() {
    let cases = [
        (None, Some(7), Refusal::Closed, Refusal::Stranger),
        (Some(7), None, Refusal::Stranger, Refusal::Closed),
        (Some(7), Some(8), Refusal::OtherSecret, Refusal::OtherSecret),
    ];
    for (dialer, listener, verdict, judgement) in cases {
        let (judgements, said) = shake(&Side::new(1, dialer), &Side::new(2, listener));
        assert_eq!(judgements, (Err(verdict), Err(judgement)));
        assert!(!said.contains("learning_rate"), "a manifest was told: {said}");
    }
}

#[test]
fn a_member_of_another_closed_run_with_the_same_secret_is_refused() {
    let (ours, mut theirs) = (Side::new(1, Some(7)), Side::new(2, Some(7)));
    theirs.manifest.run.seed = 9;
    let (judgements, _) = shake(&ours, &theirs);
    assert_eq!(judgements, (Err(Refusal::OtherSecret), Err(Refusal::OtherSecret)));
}

#[test]
fn another_run_is_refused_with_the_fields_that_differ() {
    let (ours, mut theirs) = (Side::new(1, None), Side::new(2, None));
    theirs.manifest.optimizer.learning_rate = 1e-3;
    let ((verdict, judgement), _) = shake(&ours, &theirs);
    let (verdict, judgement) = (verdict.expect_err("another run"), judgement.expect_err("another run"));
    assert!(verdict.to_string().contains("optimizer.learning_rate: 0.004 here, 0.001 there"), "{verdict}");
    assert!(judgement.to_string().contains("optimizer.learning_rate: 0.001 here, 0.004 there"), "{judgement}");
}

/// A joiner asks `listener` for its manifest.
fn ask(credentials: Option<Credentials>, listener: &Side) -> Result<RunManifest, Refusal> {
    let ends = (PeerId::from_public_key([1; 32]), listener.peer);
    let parties = Parties { dialer: ends.0, listener: ends.1, dialer_nonce: [1; 32], listener_nonce: [2; 32] };
    let challenge = challenge(&listener.credentials(), &parties, Stamps::default());
    let proof = judge_challenge(credentials.as_ref(), ends, [1; 32], &challenge).map_err(|(refusal, _)| refusal)?;
    let judgement = judge_greeting(&listener.manifest, &listener.credentials(), &parties, Greeting::Ask { proof });
    let answer = answer(&judgement, &listener.manifest.canonical_text(), vec![]);
    manifest_from_answer(&answer, credentials.map(|credentials| credentials.run))
}

#[test]
fn a_manifest_is_told_to_anybody_in_an_open_run_and_to_ticket_holders_in_a_closed_one() {
    let open = Side::new(2, None);
    let closed = Side::new(2, Some(7));
    assert_eq!(ask(None, &open), Ok(RunManifest::default()));
    assert_eq!(ask(Some(open.credentials()), &open), Ok(RunManifest::default()));
    assert_eq!(ask(Some(closed.credentials()), &closed), Ok(RunManifest::default()));
    assert_eq!(ask(None, &closed), Err(Refusal::Closed));
    // The run id alone, guessed or heard of, opens nothing and confirms nothing.
    assert_eq!(ask(Some(open.credentials()), &closed), Err(Refusal::Closed));
    let guessed = Credentials { run: RunId([3; 32]), secret: None };
    assert_eq!(ask(Some(guessed), &closed), Err(Refusal::Closed));
    let wrong = Credentials { secret: Some(Secret::from_bytes([9; 32])), ..closed.credentials() };
    assert_eq!(ask(Some(wrong), &closed), Err(Refusal::OtherSecret));
}

#[test]
fn a_liar_that_skips_the_proof_is_denied() {
    let listener = Side::new(2, Some(7));
    let parties = Parties {
        dialer: PeerId::from_public_key([1; 32]),
        listener: listener.peer,
        dialer_nonce: [1; 32],
        listener_nonce: [2; 32],
    };
    let mirrored = Proof::new(listener.secret.as_ref().expect("closed"), RunId([0; 32]), &parties, Prover::Listener);
    for (proof, expected) in [(None, Denial::Closed), (Some(mirrored), Denial::OtherSecret)] {
        for greeting in [Greeting::Ask { proof }, Side::new(1, None).greeting(proof)] {
            let judgement = judge_greeting(&listener.manifest, &listener.credentials(), &parties, greeting);
            assert_eq!(answer(&judgement, "the manifest", vec![]), Answer::Denied(expected));
        }
    }
}

/// What listener and dialer make of the first greeting on a connection.
fn enter(dialer: &Side, listener: &Side) -> (Result<(), Refusal>, Result<(), Refusal>) {
    let ends = (dialer.peer, listener.peer);
    let parties = Parties { dialer: ends.0, listener: ends.1, dialer_nonce: [1; 32], listener_nonce: [2; 32] };
    let challenge = challenge(&listener.credentials(), &parties, Stamps::default());
    let judged = judge_challenge(Some(&dialer.credentials()), ends, [1; 32], &challenge);
    let greeting = match &judged {
        Ok(proof) => Greeting::Enter { proof: *proof },
        Err((_, word)) => Greeting::Leave(word.expect("it was not turned away")),
    };
    let (judgement, answer) = judge_entry(&listener.credentials(), &parties, &greeting);
    (judgement, judged.map_err(|(refusal, _)| refusal).and_then(|_| judge_entered(&answer)))
}

#[test]
fn nobody_enters_a_closed_run_without_its_secret() {
    let closed = |peer| Side::new(peer, Some(7));
    assert_eq!(enter(&closed(1), &closed(2)), (Ok(()), Ok(())));
    let [stranger, other] = [None, Some(8)].map(|secret| Side::new(1, secret));
    assert_eq!(enter(&stranger, &closed(2)), (Err(Refusal::Stranger), Err(Refusal::Closed)));
    assert_eq!(enter(&other, &closed(2)), (Err(Refusal::OtherSecret), Err(Refusal::OtherSecret)));
    // Who says yes to everything, and proves nothing.
    let parties =
        Parties { dialer: stranger.peer, listener: closed(2).peer, dialer_nonce: [1; 32], listener_nonce: [2; 32] };
    let mirrored = Proof::new(&Secret::from_bytes([8; 32]), closed(2).credentials().run, &parties, Prover::Dialer);
    for (proof, expected) in [(None, Denial::Closed), (Some(mirrored), Denial::OtherSecret)] {
        for greeting in [Greeting::Enter { proof }, Greeting::Ask { proof }, stranger.greeting(proof)] {
            let (judgement, answer) = judge_entry(&closed(2).credentials(), &parties, &greeting);
            assert!(judgement.is_err() && answer == Answer::Denied(expected), "{greeting:?}: {answer:?}");
        }
    }
    // A run where nobody has to enter.
    let asked =
        judge_greeting(&RunManifest::default(), &stranger.credentials(), &parties, Greeting::Enter { proof: None });
    assert!(matches!(asked, Err(Refusal::Garbage(_))), "{asked:?}");
}

#[test]
fn who_is_turned_away_hears_it() {
    let ends = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let judged = judge_challenge(None, (ends[0], ends[1]), [1; 32], &turn_away());
    assert_eq!(judged, Err((Refusal::NotAdmitted, None)));
}

/// What version 2 said first, and what it expects to hear.
#[derive(Debug, PartialEq, Encode, Decode)]
struct GreetingOfVersion2 {
    version: u32,
    manifest: Option<String>,
    addresses: Vec<Address>,
}

#[derive(Debug, PartialEq, Encode, Decode)]
struct AnswerOfVersion2 {
    version: u32,
    welcome: bool,
    manifest: String,
    addresses: Vec<Address>,
}

#[test]
fn nodes_of_version_2_hear_of_the_difference_and_are_understood() {
    let theirs = GreetingOfVersion2 { version: 2, manifest: Some("run.seed = 1".to_owned()), addresses: vec![] };
    let hello: Hello = codec::decode(&codec::encode(&theirs)).expect("the form of a hello");
    assert_eq!(hello.nonce(), Err(Refusal::Version { theirs: 2 }));
    let reply: AnswerOfVersion2 = codec::decode(&codec::encode(&OtherVersion::default())).expect("understood");
    assert_eq!((reply.version, reply.welcome), (PROTOCOL_VERSION, false));

    // To our hello it replies with its version.
    let ours: GreetingOfVersion2 = codec::decode(&codec::encode(&Hello::new([9; 32]))).expect("understood");
    assert_eq!((ours.version, ours.manifest), (PROTOCOL_VERSION, None));
    let reply = AnswerOfVersion2 { version: 2, welcome: false, manifest: "x".to_owned(), addresses: vec![] };
    assert_eq!(Challenge::decode(&codec::encode(&reply)), Err(Refusal::Version { theirs: 2 }));
}

#[test]
fn a_hello_without_a_sound_nonce_is_garbage() {
    for nonce in [vec![], vec!["00".repeat(31)], vec!["zz".repeat(32)], vec!["00".repeat(32); 2]] {
        let greeting = (PROTOCOL_VERSION, None::<String>, nonce);
        let hello: Hello = codec::decode(&codec::encode(&greeting)).expect("the form of a hello");
        assert!(matches!(hello.nonce(), Err(Refusal::Garbage(_))));
    }
}
