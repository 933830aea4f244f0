//! What trainers do with a node's orders, and the laws that a sum and a replica are held to.

use super::*;

impl World {
    pub(super) fn train(&mut self, node: usize, order: TrainerOrder) {
        let sabotage = self.sabotage;
        let time = self.dice.random_range(20..60);
        let member = &mut self.members[node];
        match order {
            TrainerOrder::Contribute { .. } if member.report.progress >= self.ends_at => {}
            TrainerOrder::Contribute { request } => {
                member.orders += 1;
                let order = member.orders;
                match member.slowness {
                    Some(slowness) => self.later(node, time + slowness, Happening::Contributed(request, order)),
                    None => member.kept = Some(request),
                }
            }
            TrainerOrder::TakeUp { sum, members, progress } => {
                let times = if sabotage == Sabotage::TakesUpTwice && node == 1 && progress == 9.0 { 2 } else { 1 };
                for _ in 0..times {
                    let values = member.replica.iter_mut().zip(sum.values());
                    values.for_each(|(value, sum)| *value = 0.5 * *value + 0.25 * sum / members as f32);
                }
                member.report.steps += 1;
                member.report.progress = progress;
                self.judge(node, sum.values(), members, progress as u64);
                self.look_whether_over(node);
            }
            TrainerOrder::LoadReplica { request, .. } if member.refusals > 0 => {
                member.refusals -= 1;
                let (accepted, report) = (false, member.report);
                self.later(node, 1, Happening::Told(Event::StateLoaded { request, accepted, report }));
            }
            TrainerOrder::LoadReplica { request, replica, progress } => {
                let loaded = Snapshot::from_payload(&replica, self.parameters).expect("a replica of this run");
                if sabotage == Sabotage::KeepsItsReplica {
                    member.told_digest = Some(state_digest(loaded.values()));
                } else {
                    member.replica = loaded.values().to_vec();
                }
                member.report.progress = progress;
                member.orders += 1;
                let (accepted, report) = (true, member.report);
                self.later(node, 1, Happening::Told(Event::StateLoaded { request, accepted, report }));
                self.look_whether_over(node);
            }
            TrainerOrder::Complete if self.stays => {}
            TrainerOrder::Complete => self.later(node, 20, Happening::Told(Event::LeaveRequested)),
            TrainerOrder::TakeSnapshot { request, selection } => {
                assert_eq!(selection, Selection::Replica);
                let (snapshot, report) = (Snapshot::from(member.replica.clone()), member.report);
                let delay = 1 + self.snapshot_delay;
                self.later(node, delay, Happening::Told(Event::SnapshotTaken { request, snapshot, report }));
            }
            _ => {}
        }
    }

    fn look_whether_over(&mut self, node: usize) {
        let report = self.members[node].report;
        if report.progress >= self.ends_at {
            self.later(node, 10, Happening::Told(Event::TrainingCompleted(report)));
        }
    }

    /// The laws: each contribution once, and one replica.
    fn judge(&mut self, node: usize, sum: &[f32], members: u32, progress: u64) {
        let is_exact = self.slice_bits == 32;
        // Where slices are rounded, the sum does not show who is in it.
        let who = if is_exact { sum[0] as u64 } else { u64::from(members) };
        let all = (0..64)
            .filter(|other| who >> other & 1 == 1)
            .map(|other| contribution(other, progress - 1, self.parameters));
        let expected = all.fold(vec![0.0; self.parameters], |sum: Vec<f32>, one| {
            sum.iter().zip(one).map(|(sum, one)| sum + one).collect()
        });
        if is_exact && (who.count_ones() != members || sum != expected) {
            self.broken.push(format!("node {node}: the sum of step {progress}"));
        }
        let digest = state_digest(&self.members[node].replica);
        let (now, known) = (self.now, self.replicas.entry((progress, who)).or_insert((self.now, digest)));
        // Parts of a group that was split may come by the same step later, from other replicas.
        if now.saturating_since(known.0) > ONE_OPERATION {
            *known = (now, digest);
        }
        if known.1 != digest {
            self.broken.push(format!("node {node}: another replica after step {progress} of {members}"));
        }
    }
}
