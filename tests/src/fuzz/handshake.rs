//! The words of a handshake, said by somebody who does not know the secret of a closed run, to either side of it.

use std::sync::LazyLock;

use murmur_protocol::codec::{self, CONTROL_BYTES_MAX};
use murmur_protocol::handshake::{
    self, Answer, Challenge, Credentials, Greeting, Hello, NONCE_BYTES, Parties, Proof, Prover, Refusal, Stamps,
    Visitor,
};
use murmur_protocol::{Address, PeerId, RunManifest, Secret};

use super::assert_harmless;

const NONCE: [u8; NONCE_BYTES] = [7; NONCE_BYTES];

/// The run of the side under test, and its canonical text.
static OURS: LazyLock<(RunManifest, String)> = LazyLock::new(|| {
    let ours = RunManifest::built_in();
    let text = ours.canonical_text();
    (ours, text)
});

pub(super) fn read(bytes: &[u8]) -> bool {
    let (ours, text) = &*OURS;
    let (me, other) = (PeerId::from_public_key([1; 32]), PeerId::from_public_key([2; 32]));
    let credentials = |secret| Credentials { run: ours.run_id(), secret };
    let (open, closed) = (credentials(None), credentials(Some(Secret::from_bytes([9; 32]))));
    let hello = codec::decode::<Hello>(bytes);
    if let Ok(Err(refusal)) = hello.as_ref().map(Hello::nonce) {
        check_refusal(&refusal);
    }
    let challenge = Challenge::decode(bytes);
    match &challenge {
        Ok(challenge) => {
            challenge.stamps();
            let judged = handshake::judge_challenge(Some(&closed), (me, other), NONCE, challenge);
            assert!(judged.is_err(), "a listener without the secret was believed");
            for credentials in [Some(&open), None] {
                if let Err((refusal, _)) = handshake::judge_challenge(credentials, (me, other), NONCE, challenge) {
                    check_refusal(&refusal);
                }
            }
        }
        Err(refusal) => check_refusal(refusal),
    }
    let greeting = codec::decode::<Greeting>(bytes);
    if let Ok(greeting) = &greeting {
        let parties = Parties { dialer: other, listener: me, dialer_nonce: NONCE, listener_nonce: NONCE };
        let (entered, answer) = handshake::judge_entry(&closed, &parties, greeting);
        assert!(entered.is_err() && matches!(answer, Answer::Denied(_)), "a dialer without the secret was let in");
        let judged = handshake::judge_greeting(ours, &closed, &parties, greeting.clone());
        let answer = handshake::answer(&judged, text, Vec::new());
        assert!(judged.is_err() && matches!(answer, Answer::Denied(_)), "a dialer without the secret was told the run");
        let judged = handshake::judge_greeting(ours, &open, &parties, greeting.clone());
        assert!(codec::encode(&handshake::answer(&judged, text, Vec::new())).len() <= CONTROL_BYTES_MAX);
        if let Err(refusal) = judged {
            check_refusal(&refusal);
        }
    }
    let answer = codec::decode::<Answer>(bytes);
    if let Ok(answer) = &answer {
        let judged = [
            handshake::judge_entered(answer).err(),
            handshake::manifest_from_answer(answer, None).err(),
            handshake::manifest_from_answer(answer, Some(ours.run_id())).err(),
            handshake::judge_answer(ours, answer.clone()).err(),
        ];
        judged.iter().flatten().for_each(check_refusal);
    }
    hello.is_ok() || challenge.is_ok() || greeting.is_ok() || answer.is_ok()
}

/// Refusals are shown, and told to the core.
fn check_refusal(refusal: &Refusal) {
    assert_harmless(&refusal.to_string());
    assert!(!refusal.remedy().is_empty());
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let (ours, text) = &*OURS;
    let (me, other) = (PeerId::from_public_key([1; 32]), PeerId::from_public_key([2; 32]));
    let parties = Parties { dialer: other, listener: me, dialer_nonce: NONCE, listener_nonce: NONCE };
    let secret = Secret::from_bytes([4; 32]);
    let proof = Some(Proof::new(&secret, ours.run_id(), &parties, Prover::Dialer));
    let addresses = vec![Address::new("/ip4/192.0.2.7/tcp/4001").expect("an address")];
    let strangers = Credentials { run: ours.run_id(), secret: Some(secret) };
    let join = Greeting::Join { proof: None, manifest: text.clone(), addresses: addresses.clone() };
    let run = handshake::answer(&Ok(Visitor::Member(Vec::new())), text, addresses);
    vec![
        codec::encode(&Hello::new(NONCE)),
        codec::encode(&handshake::challenge(&strangers, &parties, Stamps { received: 1, sent: 2 })),
        codec::encode(&handshake::turn_away()),
        codec::encode(&join),
        codec::encode(&Greeting::Ask { proof }),
        codec::encode(&Greeting::Enter { proof }),
        codec::encode(&run),
        codec::encode(&Answer::Entered),
    ]
}
