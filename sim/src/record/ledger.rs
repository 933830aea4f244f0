//! The book of all exchanges: pairs the two sides, has each pair checked, and keeps sums instead of corrections.
//!
//! An exchange is open until both corrections are part of their models. What an open one holds is dropped after a
//! while, so that the many that stay one-sided under a hostile network cost a few numbers each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use murmur_protocol::numerics::CodeWidth;
use murmur_protocol::{Correction, Snapshot, Time};

use super::{ExchangeRecord, MergeRecord, Side};
use crate::checks::{self, Violation};
use crate::scenario::HostIndex;

/// How long models and corrections of one side wait for the other: beyond any exchange's deadline. Of a pair that is
/// complete only later, the corrections are not compared.
const BULK_KEPT: Duration = Duration::from_secs(300);

/// How long a finished exchange is remembered, so that it is noticed when somebody merges it again.
const FINISHED_KEPT: Duration = Duration::from_secs(3600);

/// Sums over all corrections.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Corrections that nodes ordered.
    pub merges: u64,
    /// Those among them of exchanges on a link.
    pub on_links: u64,
    /// Those among these whose starter sent a new reference.
    pub begun_anew: u64,
    /// Exchanges whose two corrections both became part of a model.
    pub pairs: u64,
    /// Those among them that were complete in each second of the run, by second.
    pub pairs_by_second: Vec<u64>,
    /// Corrections that became part of a model while the other side's did not.
    pub one_sided: Vec<MergeRecord>,
    /// Sum of all corrections that became part of a model, each once and times its own side's share of the joint
    /// weight: zero where all exchanges are complete.
    pub weighted: Vec<f64>,
    /// Sum of the lengths of all those corrections.
    pub way: f64,
}

impl Totals {
    /// Exchanges that were complete in the second of `since`, or later.
    pub fn pairs_since(&self, since: Time) -> u64 {
        self.pairs_by_second.iter().skip(since.since_start().as_secs() as usize).sum()
    }
}

/// What is known of one side.
#[derive(Clone, Debug)]
struct OpenSide {
    merge: MergeRecord,
    bulk: Option<(Snapshot, Correction)>,
    /// Index of the side that it was paired with.
    partner: Option<usize>,
}

/// The book.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    open: BTreeMap<u64, Vec<OpenSide>>,
    opened: VecDeque<(Time, u64)>,
    finished: BTreeSet<u64>,
    /// Proposals that a liar has made again, to somebody else too: to each who accepts it is a new exchange.
    repeated: BTreeSet<u64>,
    finished_in_order: VecDeque<(Time, u64)>,
    totals: Totals,
    gone: Vec<MergeRecord>,
    /// Whose models are not what they show: distances say nothing there.
    liars: BTreeSet<HostIndex>,
}

impl Ledger {
    pub(crate) fn new(liars: BTreeSet<HostIndex>) -> Ledger {
        Ledger { liars, ..Ledger::default() }
    }

    /// A liar proposes an exchange again.
    pub(crate) fn repeated(&mut self, exchange: u64) {
        self.repeated.insert(exchange);
    }

    /// A node has ordered a correction. Returns what is wrong with that.
    pub(crate) fn ordered(
        &mut self,
        merge: MergeRecord,
        snapshot: Snapshot,
        correction: Correction,
    ) -> Vec<Result<(), Violation>> {
        let now = merge.at;
        self.forget_old(now);
        self.totals.merges += 1;
        self.totals.on_links += u64::from(merge.width == CodeWidth::One);
        self.totals.begun_anew += u64::from(merge.begins_reference);
        let mut verdicts = vec![checks::step_bounded(&merge)];
        let name = merge.exchange;
        let is_over = self.finished.contains(&name);
        let sides = self.open.entry(name).or_insert_with(|| {
            self.opened.push_back((now, name));
            Vec::new()
        });
        let earlier = sides.iter().any(|side| side.merge.side == merge.side && side.merge.life == merge.life);
        let is_repeated = self.repeated.contains(&name);
        verdicts.push(checks::merged_once(&merge, earlier || (is_over && !is_repeated)));
        let merge_partner = merge.partner;
        let mut side = OpenSide { merge, bulk: Some((snapshot, correction)), partner: None };
        // A responder that crashed and came back may have merged in each life; the starter has answered the last one.
        let is_partner = |other: &MergeRecord| merge_partner.is_none_or(|partner| partner == other.host);
        let answered = sides.iter().rposition(|other| other.merge.side == Side::Responder && is_partner(&other.merge));
        if let (Side::Starter, Some(index)) = (side.merge.side, answered) {
            side.partner = Some(index);
            sides[index].partner = Some(sides.len());
            if let Some(pair) = pair(&side, &sides[index]) {
                verdicts.push(checks::antisymmetric(&pair));
                let hosts = [pair.starter.host, pair.responder.host];
                if !hosts.iter().any(|host| self.liars.contains(host)) {
                    verdicts.push(checks::pair_distance(&pair));
                    verdicts.push(checks::toward_partner(&pair));
                }
            }
            side.bulk = None;
            sides[index].bulk = None;
        }
        sides.push(side);
        verdicts
    }

    /// A correction has become part of a model: of its parameters in `range`, or of none where it is for another
    /// vector.
    pub(crate) fn landed(
        &mut self,
        (exchange, side, life): (u64, Side, u64),
        now: Time,
        range: Option<Range<usize>>,
        correction: &Correction,
    ) -> Result<(), Violation> {
        let Some(sides) = self.open.get_mut(&exchange) else {
            return Err(Violation::new(
                "exactly once",
                format!("exchange {exchange:x} landed after its end at {now:?}"),
            ));
        };
        let is_it = |open: &OpenSide| open.merge.side == side && open.merge.life == life;
        let Some(index) = sides.iter().rposition(is_it) else {
            return Err(Violation::new("exactly once", format!("exchange {exchange:x} landed unordered at {now:?}")));
        };
        let merge = &mut sides[index].merge;
        merge.landings += 1;
        checks::landed_once(merge)?;
        if let Some(range) = range {
            let own_share = 1.0 - merge.partner_share;
            self.totals.way += merge.length;
            add_scaled(&mut self.totals.weighted, range, correction, own_share);
        }
        let is_complete = sides[index].partner.is_some_and(|partner| sides[partner].merge.landings > 0);
        if is_complete {
            self.finish(exchange, now);
        }
        Ok(())
    }

    /// The sums so far; exchanges under way of which one side has landed count as one-sided.
    pub(crate) fn totals(&self) -> Totals {
        let open = self.open.values().flatten().map(|side| &side.merge).filter(|merge| merge.landings > 0);
        let one_sided = self.gone.iter().chain(open).cloned().collect();
        Totals { one_sided, ..self.totals.clone() }
    }

    fn finish(&mut self, exchange: u64, now: Time) {
        let sides = self.open.remove(&exchange).unwrap_or_default();
        // Lives of the responder that nobody answered.
        let alone = sides.into_iter().filter(|side| side.partner.is_none() && side.merge.landings > 0);
        self.gone.extend(alone.map(|side| side.merge));
        self.totals.pairs += 1;
        let second = now.since_start().as_secs() as usize;
        if self.totals.pairs_by_second.len() <= second {
            self.totals.pairs_by_second.resize(second + 1, 0);
        }
        self.totals.pairs_by_second[second] += 1;
        self.finished.insert(exchange);
        self.finished_in_order.push_back((now, exchange));
    }

    fn forget_old(&mut self, now: Time) {
        while self.opened.front().is_some_and(|(at, _)| now.saturating_since(*at) > BULK_KEPT) {
            if let Some(sides) = self.opened.pop_front().and_then(|(_, exchange)| self.open.get_mut(&exchange)) {
                sides.iter_mut().for_each(|side| side.bulk = None);
            }
        }
        while self.finished_in_order.front().is_some_and(|(at, _)| now.saturating_since(*at) > FINISHED_KEPT) {
            if let Some((_, exchange)) = self.finished_in_order.pop_front() {
                self.finished.remove(&exchange);
            }
        }
    }
}

/// Adds a correction of the elements in `range` to a sum, which grows where it must.
pub(crate) fn add_scaled(sum: &mut Vec<f64>, range: Range<usize>, correction: &Correction, factor: f64) {
    sum.resize(range.end.max(sum.len()), 0.0);
    for (sum, value) in sum[range].iter_mut().zip(correction.to_values()) {
        *sum += f64::from(value) * factor;
    }
}

fn pair(starter: &OpenSide, responder: &OpenSide) -> Option<ExchangeRecord> {
    let ((starter_model, starter_correction), (responder_model, responder_correction)) =
        (starter.bulk.clone()?, responder.bulk.clone()?);
    Some(ExchangeRecord {
        starter: starter.merge.clone(),
        responder: responder.merge.clone(),
        corrections: [starter_correction, responder_correction],
        snapshots: [starter_model, responder_model],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged;

    fn order(ledger: &mut Ledger, side: Side, codes: [i8; 2]) -> Vec<Violation> {
        let (merge, correction) = forged::merge(1, side, codes);
        let snapshot = Snapshot::from(if side == Side::Starter { vec![3.0, 0.0] } else { vec![0.0, 2.0] });
        let verdicts = ledger.ordered(merge, snapshot, correction);
        verdicts.into_iter().filter_map(Result::err).collect()
    }

    fn land(ledger: &mut Ledger, side: Side, codes: [i8; 2]) -> Result<(), Violation> {
        let (merge, correction) = forged::merge(1, side, codes);
        ledger.landed((1, side, merge.life), Time::ZERO, Some(0..2), &correction)
    }

    #[test]
    fn a_pair_becomes_part_of_sums() {
        let mut ledger = Ledger::default();
        assert_eq!(order(&mut ledger, Side::Responder, [3, -2]), []);
        assert_eq!(land(&mut ledger, Side::Responder, [3, -2]), Ok(()));
        assert_eq!(ledger.totals().one_sided.len(), 1, "as long as the starter has not merged");
        assert_eq!(order(&mut ledger, Side::Starter, [-3, 2]), []);
        assert_eq!(land(&mut ledger, Side::Starter, [-3, 2]), Ok(()));
        let totals = ledger.totals();
        assert_eq!((totals.merges, totals.pairs, totals.one_sided.len()), (2, 1, 0));
        assert_eq!(totals.weighted, vec![0.0; 2]);
        assert!(ledger.open.is_empty());
    }

    #[test]
    fn a_merge_of_a_finished_exchange_is_found() {
        let mut ledger = Ledger::default();
        for (side, codes) in [(Side::Responder, [3, -2]), (Side::Starter, [-3, 2])] {
            assert_eq!(order(&mut ledger, side, codes), []);
            assert_eq!(land(&mut ledger, side, codes), Ok(()));
        }
        assert_eq!(order(&mut ledger, Side::Responder, [3, -2]).len(), 1);
    }

    #[test]
    fn a_third_host_that_a_liar_brings_in_is_not_the_partner() {
        let mut ledger = Ledger::default();
        order(&mut ledger, Side::Responder, [3, -2]);
        // It has accepted the same proposal, repeated to it, and merged another difference.
        let (third, correction) = forged::merge(1, Side::Responder, [7, 1]);
        let third = MergeRecord { host: 2, life: 2, ..third };
        let verdicts = ledger.ordered(third, Snapshot::from(vec![9.0, 2.0]), correction);
        assert!(verdicts.into_iter().all(|verdict| verdict.is_ok()));
        assert_eq!(order(&mut ledger, Side::Starter, [-3, 2]), []);
    }

    #[test]
    fn a_correction_that_lands_twice_is_found() {
        let mut ledger = Ledger::default();
        order(&mut ledger, Side::Responder, [3, -2]);
        assert_eq!(land(&mut ledger, Side::Responder, [3, -2]), Ok(()));
        assert!(land(&mut ledger, Side::Responder, [3, -2]).is_err());
    }
}
