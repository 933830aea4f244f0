//! Asking and answering which life is at the other end of a connection.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::{Event, PeerId, codec};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Answer, Life, Question};
use crate::frame::{read_frame, write_frame};
use crate::shared::Shared;
use crate::streams::{LIFE_PROTOCOL, Stream, StreamOpener};

/// A question or an answer: two lives and a signature are far shorter.
const WORDS_BYTES_MAX: usize = 256;

/// An answer takes one way there and back. A life that has ended does not answer at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers a peer's questions on one connection, one after the other, until it closes.
pub(crate) async fn attend(shared: Arc<Shared>, mut questions: mpsc::Receiver<Stream>) {
    while let Some(mut stream) = questions.recv().await {
        let answering = async {
            let bytes = read_frame(&mut stream, WORDS_BYTES_MAX).await.ok()??;
            let answer = shared.life.answer(codec::decode(&bytes).ok()?)?;
            write_frame(&mut stream, &codec::encode(&answer)).await.ok()
        };
        let _ = timeout(ANSWER_TIMEOUT, answering).await;
    }
}

/// Finds out whether two connections to one peer lead to two nodes, tells both, and the core.
pub(crate) async fn compare(shared: Arc<Shared>, peer: PeerId, connections: [StreamOpener; 2]) {
    let [one, other] = &connections;
    let (Some(first), Some(second)) = tokio::join!(name(one), name(other)) else { return };
    if first == second {
        return;
    }
    let ((elder, at_elder), (younger, at_younger)) =
        if first < second { ((first, one), (second, other)) } else { ((second, other), (first, one)) };
    tracing::debug!(%peer, ?elder, ?younger, "two nodes have one identity");
    shared.emit(Event::IdentityDoubled { peer }).await;
    if let Some(Answer::Signature(signature)) = ask(at_elder, &Question::Vouch(younger)).await {
        ask(at_younger, &Question::Yield { elder, signature }).await;
    }
}

async fn name(connection: &StreamOpener) -> Option<Life> {
    match ask(connection, &Question::Name).await {
        Some(Answer::Life(life)) => Some(life),
        _ => None,
    }
}

async fn ask(connection: &StreamOpener, question: &Question) -> Option<Answer> {
    let asking = async {
        let mut stream = connection.open(LIFE_PROTOCOL).await.ok()?;
        write_frame(&mut stream, &codec::encode(question)).await.ok()?;
        let bytes = read_frame(&mut stream, WORDS_BYTES_MAX).await.ok()??;
        codec::decode(&bytes).ok()
    };
    timeout(ANSWER_TIMEOUT, asking).await.ok().flatten()
}
