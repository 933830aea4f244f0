//! Giving the model to joiners, a few chunks at a time.

use std::collections::{BTreeMap, VecDeque};

use crate::Snapshot;
use crate::bounds::*;
use crate::effect::{Effect, Notice, TransferId};
use crate::event::Misbehaviour;
use crate::layout::ModelLayout;
use crate::message::{Chunks, Message, TransferHeader};
use crate::outbox::{Outbox, Purpose};
use crate::part::Selection;
use crate::peer::PeerId;

use super::chunking::Chunking;

/// The sub-machine of a node that gives its model to joiners.
#[derive(Debug)]
pub(crate) struct Giving {
    chunking: Chunking,
    /// Joiners being served; at most [`STATE_TRANSFERS_MAX`].
    joiners: BTreeMap<PeerId, Given>,
}

#[derive(Debug)]
struct Given {
    request: u64,
    chunks: Chunks,
    /// What is still to be sent: a snapshot at one step boundary.
    ready: VecDeque<(TransferHeader, crate::Payload)>,
    has_snapshot: bool,
    /// At most [`STATE_CHUNKS_SENT_MAX`].
    sending: Vec<TransferId>,
}

impl Giving {
    pub(crate) fn new(chunking: Chunking) -> Giving {
        Giving { chunking, joiners: BTreeMap::new() }
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.joiners.contains_key(&peer)
    }

    /// `has_model`: whether there is anything to give.
    ///
    /// # Errors
    /// When there are no such chunks, or too many are asked for.
    pub(crate) fn on_request(
        &mut self,
        peer: PeerId,
        request: u64,
        chunks: Chunks,
        has_model: bool,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        if !self.chunking.holds(chunks) || chunks.count > STATE_CHUNKS_MAX {
            return Err(Misbehaviour::OutOfRange("chunks"));
        }
        if self.joiners.get(&peer).is_some_and(|given| given.request == request) {
            return Ok(()); // repeated while it is being served
        }
        let is_full = self.joiners.len() >= STATE_TRANSFERS_MAX && !self.joiners.contains_key(&peer);
        if !has_model || is_full {
            let retry_after_ms = STATE_RETRY.as_millis() as u32;
            out.send(peer, Message::RefuseState { request, retry_after_ms });
            return Ok(());
        }
        // What was asked for before and is not on its way yet, nobody waits for any more.
        let sending = self.joiners.remove(&peer).map(|given| given.sending).unwrap_or_default();
        let given = Given { request, chunks, ready: VecDeque::new(), has_snapshot: false, sending };
        self.joiners.insert(peer, given);
        let selection = Selection::State(self.chunking.stretch(chunks));
        out.request(Purpose::StateSnapshot(peer, request), |request| Effect::TakeSnapshot { request, selection });
        Ok(())
    }

    pub(crate) fn on_snapshot(
        &mut self,
        peer: PeerId,
        request: u64,
        snapshot: &Snapshot,
        progress: f64,
        layout: &ModelLayout,
        out: &mut Outbox,
    ) {
        let Some(given) = self.joiners.get_mut(&peer).filter(|given| given.request == request) else { return };
        let bytes = snapshot.to_payload();
        let mut offset = 0;
        for chunk in given.chunks.first..given.chunks.first + given.chunks.count {
            let length = 4 * self.chunking.length(chunk);
            let header = TransferHeader::State { request, chunk, progress, layout: *layout.digest() };
            // A trainer that hands over too little has failed; the joiner asks elsewhere.
            let Some(payload) = bytes.slice(offset..offset + length) else { break };
            given.ready.push_back((header, payload));
            offset += length;
        }
        given.has_snapshot = true;
        self.send_on(peer, out);
    }

    pub(crate) fn on_transfer_ended(&mut self, transfer: TransferId, finished: bool, out: &mut Outbox) {
        let is_its = |given: &Given| given.sending.contains(&transfer);
        let Some(peer) = self.joiners.iter().find(|(_, given)| is_its(given)).map(|(peer, _)| *peer) else { return };
        let given = self.joiners.get_mut(&peer).expect("just found");
        given.sending.retain(|other| *other != transfer);
        if !finished {
            // The joiner waits for the chunk in vain, and asks elsewhere for all that is missing.
            given.ready.clear();
        }
        self.send_on(peer, out);
        let given = self.joiners.get(&peer).expect("just found");
        if given.has_snapshot && given.ready.is_empty() && given.sending.is_empty() {
            if finished {
                out.notice(Notice::StateSent { peer, chunks: given.chunks.count, of: self.chunking.count() });
            }
            self.joiners.remove(&peer);
        }
    }

    /// The joiner is gone, or the trainer could not take its snapshot.
    pub(crate) fn give_up(&mut self, peer: PeerId) {
        self.joiners.remove(&peer);
    }

    fn send_on(&mut self, peer: PeerId, out: &mut Outbox) {
        let Some(given) = self.joiners.get_mut(&peer) else { return };
        while given.sending.len() < STATE_CHUNKS_SENT_MAX
            && let Some((header, payload)) = given.ready.pop_front()
        {
            given.sending.push(out.transfer(peer, header, payload));
        }
    }
}
