//! A few nodes in a world that does whatever a tape of bytes says: deliver, lose, repeat, delay, crash, lie. Nothing here is
//! fair or likely. Whatever happens, the laws at the end of this file hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::numerics::{self, Buffers, MergeRole};
use murmur_protocol::replay::{Recording, Told, digest, told};
use murmur_protocol::*;

use super::tape::Tape;

/// Two blocks, the second one short.
const PARAMETERS: usize = 300;

/// Nodes in the world.
const NODES: usize = 3;

/// Things on their way at once; the oldest is lost when there are more.
const FLYING_MAX: usize = 200;

/// Effects of one event that no schedule may exceed: farewells and repeats to every connection, and requests.
const EFFECTS_MAX: usize = bounds::CONNECTIONS_MAX + bounds::PENDING_MAX;

/// On its way to a node.
#[derive(Clone)]
enum Flying {
    Message { from: usize, to: usize, message: Message },
    Transfer { from: usize, to: usize, transfer: TransferId, header: TransferHeader, payload: Payload },
}

/// A node with its trainer.
struct Member {
    life: u64,
    peer: PeerId,
    node: Node,
    model: Vec<f32>,
    fragments: Fragments,
    steps: u64,
    progress: f64,
    is_training: bool,
    /// Orders that await a reply.
    orders: Vec<Effect>,
}

/// A correction that became part of a model.
struct Landed {
    nonce: u64,
    is_responder: bool,
    life: u64,
    factor: f64,
    correction: Correction,
    limit: f64,
}

/// The world.
pub(crate) struct World {
    now: Time,
    members: Vec<Member>,
    connected: [[bool; NODES]; NODES],
    flying: Vec<Flying>,
    buffers: Buffers,
    lives: u64,
    merging: BTreeMap<(u64, RequestId), (u64, bool, f64, f64)>,
    landed: Vec<Landed>,
    /// By life, where they are wanted.
    recordings: Option<BTreeMap<u64, (Recording, Vec<u8>)>>,
}

impl World {
    /// Lives through a tape, then calms down, and checks every law on the way and at the end. Returns how many
    /// corrections became part of a model.
    ///
    /// # Panics
    /// When a law is broken.
    pub(crate) fn live(tape: &mut Tape<'_>) -> usize {
        World::through(tape, None).landed.len()
    }

    /// The same, and what the lives of all nodes were recorded as.
    #[allow(dead_code, reason = "the fuzzer has no use for it")]
    pub(crate) fn live_recorded(tape: &mut Tape<'_>) -> (usize, Vec<Vec<u8>>) {
        let world = World::through(tape, Some(BTreeMap::new()));
        let recordings = world.recordings.unwrap_or_default().into_values();
        (world.landed.len(), recordings.map(|(_, bytes)| bytes).collect())
    }

    fn through(tape: &mut Tape<'_>, recordings: Option<BTreeMap<u64, (Recording, Vec<u8>)>>) -> World {
        let mut world = World::new(tape, recordings);
        while !tape.has_ended() {
            world.act(tape);
        }
        world.calm_down();
        world.assert_laws();
        world
    }

    fn new(tape: &mut Tape<'_>, recordings: Option<BTreeMap<u64, (Recording, Vec<u8>)>>) -> World {
        let mut world = World {
            now: Time::ZERO,
            members: Vec::new(),
            connected: [[false; NODES]; NODES],
            flying: Vec::new(),
            buffers: Buffers::new(),
            lives: 0,
            merging: BTreeMap::new(),
            landed: Vec::new(),
            recordings,
        };
        let options = tape.byte();
        for index in 0..NODES {
            let start = if index > 0 && options & (1 << index) != 0 { Start::FromPeer } else { Start::WithModel };
            let member = world.member(index, start, options);
            world.members.push(member);
        }
        for index in 0..NODES {
            world.drain(index, None, None);
        }
        for (one, other) in [(0, 1), (1, 2), (0, 2)] {
            world.connect(one, other);
        }
        world
    }

    fn member(&mut self, index: usize, start: Start, options: u8) -> Member {
        let mut manifest = RunManifest::default();
        manifest.gossip.fragments = if options & 0x20 != 0 { 2 } else { 1 };
        if options & 0x40 != 0 {
            (manifest.gossip.outer_learning_rate, manifest.gossip.momentum_bits) = (0.7, 4);
        }
        manifest.gossip.bits = if options & 0x80 != 0 { 6 } else { 8 };
        let first_number = self.now.since_start().as_micros() as u64;
        let config = Config { start, first_number, ..Config::founder(&manifest) };
        let peer = PeerId::from_public_key([index as u8 + 1; 32]);
        // Not in the order of names: a replayed node has to tell the same digest.
        let layout = Arc::new(ModelLayout::in_order([("z".into(), vec![PARAMETERS - 1]), ("a".into(), vec![1])]));
        self.lives += 1;
        if let Some(recordings) = &mut self.recordings {
            let begun = Recording::begin("0", &manifest, &config, (peer, &layout, self.lives, self.now));
            recordings.insert(self.lives, begun);
        }
        Member {
            life: self.lives,
            peer,
            node: Node::new(config, peer, layout.clone(), self.lives, self.now),
            model: vec![1.0; PARAMETERS],
            fragments: Fragments::of(&manifest.gossip, &layout),
            steps: 0,
            progress: 0.0,
            is_training: false,
            orders: Vec::new(),
        }
    }

    fn act(&mut self, tape: &mut Tape<'_>) {
        // Mostly what furthers an exchange, so that random tapes reach far.
        match tape.byte() {
            0..96 => self.deliver(tape),
            96..176 => self.answer(tape),
            176..208 => self.train(tape),
            208..228 => self.pass_time(Duration::from_millis(10 * u64::from(tape.byte()))),
            228..236 => {
                if let Some(flying) = self.take_flying(tape) {
                    self.fly(flying.clone());
                    self.fly(flying);
                }
            }
            236..240 => drop(self.take_flying(tape)),
            240..244 => self.lie(tape),
            244..248 => self.garble(tape),
            248..252 => {
                let (one, other) = (tape.choice(NODES), tape.choice(NODES));
                if self.connected[one][other] && tape.byte() < 64 {
                    self.disconnect(one, other);
                } else if !self.connected[one][other] {
                    self.connect(one, other);
                }
            }
            252 => self.crash(tape),
            253 => {
                let member = tape.choice(NODES);
                let event = if tape.byte() < 64 { Event::LeaveRequested } else { Event::TimePassed };
                self.tell(member, event);
            }
            254 => {
                let member = tape.choice(NODES);
                let report = self.report(member);
                self.tell(member, Event::TrainingCompleted(report));
            }
            255 => self.members.iter_mut().for_each(|member| member.orders.reverse()),
        }
    }

    fn take_flying(&mut self, tape: &mut Tape<'_>) -> Option<Flying> {
        // Among the oldest: what came first mostly arrives first.
        (!self.flying.is_empty()).then(|| self.flying.remove(tape.choice(self.flying.len().min(8))))
    }

    fn fly(&mut self, flying: Flying) {
        if self.flying.len() == FLYING_MAX {
            self.flying.remove(0);
        }
        self.flying.push(flying);
    }

    fn deliver(&mut self, tape: &mut Tape<'_>) {
        if let Some(flying) = self.take_flying(tape) {
            self.arrive(flying);
        }
    }

    fn arrive(&mut self, flying: Flying) {
        match flying {
            Flying::Message { from, to, message } if self.connected[from][to] => {
                let peer = self.members[from].peer;
                self.tell(to, Event::MessageReceived { peer, message });
            }
            Flying::Transfer { from, to, transfer, header, payload } if self.connected[from][to] => {
                let peer = self.members[from].peer;
                self.tell(to, Event::TransferReceived { peer, header, payload });
                self.tell(from, Event::TransferFinished { transfer });
            }
            Flying::Message { .. } => {}
            Flying::Transfer { from, transfer, .. } => {
                self.tell(from, Event::TransferFailed { transfer, reason: "gone".to_owned() });
            }
        }
    }

    fn answer(&mut self, tape: &mut Tape<'_>) {
        let waiting: Vec<usize> = (0..NODES).filter(|index| !self.members[*index].orders.is_empty()).collect();
        let Some(index) = waiting.get(tape.choice(waiting.len())).copied() else { return };
        let order = tape.choice(self.members[index].orders.len());
        let order = self.members[index].orders.remove(order);
        let fails = tape.byte() < 4;
        self.carry_out(index, order, fails);
    }

    fn carry_out(&mut self, index: usize, order: Effect, fails: bool) {
        let (report, life) = (self.report(index), self.members[index].life);
        let request = order.request().expect("only orders with a reply are kept");
        let event = match order {
            _ if fails => Event::RequestFailed { request },
            Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection }) => {
                let member = &self.members[index];
                let values = match selection {
                    Selection::Part(part) => member.model[member.fragments.range(part.fragment)].to_vec(),
                    Selection::Values { first, end } => member.model[first..end].to_vec(),
                    Selection::State | Selection::Replica => member.model.clone(),
                };
                Event::SnapshotTaken { request, snapshot: values.into(), report }
            }
            Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
                Event::Encoded { request, result: numerics::encode(&snapshot, &job, &self.buffers) }
            }
            Effect::Worker(WorkerOrder::Merge { request, job }) => {
                let result = numerics::merge(&job, &self.buffers);
                if let Ok(merged) = &result {
                    let factor = 2.0 * job.gamma * job.partner_share();
                    let limit = factor * job.clip.min(merged.norm);
                    let is_responder = job.role == MergeRole::Responder;
                    self.merging.insert((life, request), (job.nonce, is_responder, factor, limit));
                }
                Event::Merged { request, result }
            }
            Effect::Trainer(TrainerOrder::ApplyCorrection { request, part, correction, progress_shift }) => {
                let member = &mut self.members[index];
                if part.vector == Vector::Model {
                    correction.add_to(&mut member.model[member.fragments.range(part.fragment)]);
                }
                member.progress = (member.progress + progress_shift).max(0.0);
                Event::CorrectionApplied { request, report: self.report(index) }
            }
            Effect::Trainer(TrainerOrder::LoadState { request, chunks, progress, .. }) => {
                let state = Snapshot::from_chunks(&chunks, chunks.iter().map(|chunk| chunk.len() / 4).sum());
                let (accepted, member) = (state.is_some(), &mut self.members[index]);
                if let Some(state) = state {
                    member.model.copy_from_slice(&state.values()[..PARAMETERS]);
                    member.progress = progress;
                }
                Event::StateLoaded { request, accepted, report: self.report(index) }
            }
            _ => unreachable!("only requests are kept"),
        };
        self.tell(index, event);
    }

    fn train(&mut self, tape: &mut Tape<'_>) {
        let index = tape.choice(NODES);
        let target = f32::from(tape.byte()) / 64.0;
        let member = &mut self.members[index];
        if member.is_training {
            member.steps += 12;
            member.progress += 12.0;
            for (number, value) in member.model.iter_mut().enumerate() {
                *value += 0.1 * (target + number as f32 * 1e-3 - *value);
            }
            let report = self.report(index);
            self.tell(index, Event::StepsCompleted(report));
        }
    }

    fn pass_time(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let next = |member: &Member| member.node.next_deadline();
            let due = self.members.iter().filter_map(next).min().filter(|deadline| *deadline <= end);
            let Some(due) = due else { break };
            self.now = self.now.max(due);
            for index in 0..NODES {
                let mut wakes = 0;
                while self.members[index].node.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.tell(index, Event::TimePassed);
                    wakes += 1;
                    assert!(wakes < 4, "node {index} wants to be woken over and over at {:?}", self.now);
                }
            }
        }
        self.now = end;
    }

    fn connect(&mut self, one: usize, other: usize) {
        if one != other {
            (self.connected[one][other], self.connected[other][one]) = (true, true);
            for (at, peer) in [(one, other), (other, one)] {
                let peer = self.members[peer].peer;
                self.tell(at, Event::PeerConnected { peer, addresses: vec![] });
            }
        }
    }

    fn disconnect(&mut self, one: usize, other: usize) {
        (self.connected[one][other], self.connected[other][one]) = (false, false);
        for (at, peer) in [(one, other), (other, one)] {
            let peer = self.members[peer].peer;
            self.tell(at, Event::PeerDisconnected { peer });
        }
    }

    fn crash(&mut self, tape: &mut Tape<'_>) {
        let index = tape.choice(NODES);
        for other in (0..NODES).filter(|other| *other != index) {
            if self.connected[index][other] {
                self.disconnect(index, other);
            }
        }
        self.members[index] = self.member(index, Start::WithModel, tape.byte());
        self.drain(index, None, None);
    }

    /// A word that the sender never said.
    fn lie(&mut self, tape: &mut Tape<'_>) {
        let (from, to, length) = (tape.choice(NODES), tape.choice(NODES), usize::from(tape.byte()) % 100);
        if let Ok(message) = codec::decode::<Message>(tape.take(length))
            && from != to
        {
            self.fly(Flying::Message { from, to, message });
        }
    }

    /// Bytes on their way are not what was sent.
    fn garble(&mut self, tape: &mut Tape<'_>) {
        if let Some(mut flying) = self.take_flying(tape) {
            if let Flying::Transfer { payload, .. } = &mut flying {
                let mut bytes = payload.bytes().to_vec();
                let place = usize::from(tape.byte()) * 2 % bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= tape.byte();
                }
                bytes.truncate(bytes.len() - usize::from(tape.byte() < 32).min(bytes.len()));
                *payload = bytes.into();
            }
            self.fly(flying);
        }
    }

    fn report(&self, index: usize) -> TrainingReport {
        let Member { steps, progress, .. } = self.members[index];
        TrainingReport { steps, progress, tokens_per_second: 1000.0, travel: 1e3, local_progress: 1.0 }
    }

    fn tell(&mut self, index: usize, event: Event) {
        let merged = match &event {
            Event::Merged { request, .. } => self.merging.remove(&(self.members[index].life, *request)),
            _ => None,
        };
        let said = self.recordings.is_some().then(|| told(&event));
        self.members[index].node.handle(self.now, event);
        self.drain(index, merged, said);
    }

    fn drain(&mut self, index: usize, merged: Option<(u64, bool, f64, f64)>, said: Option<Told>) {
        let (mut count, mut digests) = (0, Vec::new());
        while let Some(effect) = self.members[index].node.poll_effect() {
            count += 1;
            digests.extend(self.recordings.is_some().then(|| digest(&effect)));
            self.obey(index, effect, merged);
        }
        assert!(count <= EFFECTS_MAX, "{count} effects of one event");
        let Member { life, node, .. } = &self.members[index];
        if let Some((recording, bytes)) = self.recordings.as_mut().and_then(|all| all.get_mut(life)) {
            bytes.extend(recording.event(self.now, said, digests, node.next_deadline()));
        }
    }

    fn obey(&mut self, index: usize, effect: Effect, merged: Option<(u64, bool, f64, f64)>) {
        let peer_index = |peer: PeerId| self.members.iter().position(|member| member.peer == peer);
        match effect {
            Effect::Network(NetworkOrder::Send { peer, message }) => {
                if let Some(to) = peer_index(peer) {
                    self.fly(Flying::Message { from: index, to, message });
                }
            }
            Effect::Network(NetworkOrder::StartTransfer { transfer, peer, header, payload }) => {
                if let Some(to) = peer_index(peer) {
                    self.fly(Flying::Transfer { from: index, to, transfer, header, payload });
                }
            }
            Effect::Trainer(TrainerOrder::ApplyCorrection { ref correction, part, .. }) => {
                if let (Some((nonce, is_responder, factor, limit)), Vector::Model) = (merged, part.vector) {
                    let (life, correction) = (self.members[index].life, correction.clone());
                    self.landed.push(Landed { nonce, is_responder, life, factor, correction, limit });
                }
                self.keep(index, effect);
            }
            effect if effect.request().is_some() => self.keep(index, effect),
            Effect::Network(NetworkOrder::Disconnect { peer }) => {
                if let Some(other) = peer_index(peer).filter(|other| self.connected[index][*other]) {
                    // Told later, as a driver would: never from within an event.
                    (self.connected[index][other], self.connected[other][index]) = (false, false);
                }
            }
            Effect::Trainer(TrainerOrder::Begin) => self.members[index].is_training = true,
            Effect::Trainer(TrainerOrder::End) | Effect::Stop => self.members[index].is_training = false,
            Effect::Network(NetworkOrder::Dial { .. }) | Effect::Trainer(_) | Effect::Worker(_) | Effect::Notice(_) => {
            }
        }
    }

    fn keep(&mut self, index: usize, order: Effect) {
        let orders = &mut self.members[index].orders;
        orders.push(order);
        assert!(orders.len() <= bounds::PENDING_MAX, "node {index} awaits {} replies", orders.len());
    }

    /// Nothing is lost any more, nobody trains, and time passes until nothing is under way.
    fn calm_down(&mut self) {
        for _ in 0..400 {
            for flying in std::mem::take(&mut self.flying) {
                self.arrive(flying);
            }
            for index in 0..NODES {
                while let Some(order) = self.members[index].orders.pop() {
                    self.carry_out(index, order, false);
                }
            }
            self.pass_time(Duration::from_secs(1));
        }
    }

    fn assert_laws(&self) {
        let mut seen = BTreeMap::new();
        for landed in &self.landed {
            // Invariant 3: exactly once.
            let key = (landed.nonce, landed.is_responder, landed.life);
            assert!(seen.insert(key, landed).is_none(), "exchange {:x} was merged twice on one side", landed.nonce);
            // Invariant 4: no further than 2γ · share · τ.
            let norm = norm(&landed.correction);
            let limit = landed.limit * (1.0 + 1e-5) + 1e-9;
            assert!(norm <= limit, "exchange {:x} moved a node by {norm}, the limit is {limit}", landed.nonce);
        }
        for starter in self.landed.iter().filter(|landed| !landed.is_responder) {
            // Invariant 1: the twin's opposite. A responder that came back may have merged once in each life.
            let twins: Vec<&Landed> =
                self.landed.iter().filter(|twin| twin.nonce == starter.nonce && twin.is_responder).collect();
            assert!(!twins.is_empty(), "a starter merges only what its partner has merged");
            assert!(
                twins.iter().any(|twin| are_opposite(starter, twin)),
                "the sides of {:x} do not cancel",
                starter.nonce
            );
        }
        for member in &self.members {
            assert!(member.model.iter().all(|value| value.is_finite()), "a model is not finite");
        }
    }
}

fn norm(correction: &Correction) -> f64 {
    correction.to_values().iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt()
}

fn are_opposite(starter: &Landed, responder: &Landed) -> bool {
    let pairs = starter.correction.to_values().into_iter().zip(responder.correction.to_values());
    pairs.into_iter().all(|(one, other)| {
        let (one, other) = (f64::from(one) * responder.factor, f64::from(other) * starter.factor);
        (one + other).abs() <= 4.0 * f64::from(f32::EPSILON) * one.abs().max(other.abs())
    })
}
