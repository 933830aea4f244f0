//! One sentence on what came of a run.

use std::time::Duration;

use super::{Ended, History, NodeHistory, Place};
use crate::console::figures::{self, counted, duration};

/// A share of exchanges that fail, and of the time in which models drift apart, above which it is said.
const NOTABLE: f64 = 0.05;

/// Who came to less than this share of the swarm's progress did not come to the run's end.
const END_SHARE: f64 = 0.9;

/// What was trained, by whom, what came of it, and what went wrong.
pub(super) fn verdict(history: &History, is_redacted: bool) -> String {
    let nodes = || history.nodes.values();
    let (begin, end) = history.times();
    // Who has trained may serve others for days.
    let trained_until = nodes().map(|node| node.trained_until).fold(0.0, f64::max);
    let end = if trained_until > 0.0 { trained_until } else { end };
    let (lasted, ran) = match history.clocks_apart() {
        None => (end - begin, History::ran(&nodes().collect::<Vec<_>>(), end)),
        // Times of different machines cannot be set beside each other.
        Some(_) => {
            let own = nodes().filter_map(|node| Some((node.time - node.begin()?, History::ran(&[node], node.time))));
            own.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default()
        }
    };
    let spoken = |seconds: f64| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let off = match lasted - ran {
        off if off <= NOTABLE * lasted => String::new(),
        off if history.nodes.len() == 1 => format!(" (off for {} of it)", spoken(off)),
        off => format!(" (all off for {} of it)", spoken(off)),
    };
    let time = spoken(lasted) + &off;
    let name = nodes()
        .next()
        .filter(|_| !is_redacted)
        .map_or(String::new(), |node| format!(" \u{201c}{}\u{201d}", node.run.run_name));
    let members = counted(history.nodes.len() as u64, "node");
    let others = history.seen().len() as u64;
    let exchanges: u64 = nodes().map(|node| node.exchanges().0).sum();
    let is_synchronous = history.nodes.values().any(|node| node.is_synchronous);
    let how = match (exchanges, history.nodes.len() as u64 + others) {
        (0, _) if is_synchronous && others > 0 && history.nodes.len() == 1 => "trained with others, as one,",
        (0, all) if is_synchronous && all > 1 => "trained together, as one,",
        (0, 1) => "trained alone",
        (0, _) => "trained without one exchange that was completed",
        _ if history.nodes.len() == 1 => "trained with others",
        _ => "trained together",
    };
    let told = if others > 0 {
        format!("{members} of {} {how}", history.nodes.len() as u64 + others)
    } else {
        format!("{members} {how}")
    };
    let mut parts = vec![format!("{told} over {time}")];
    parts.push(loss(history).unwrap_or_else(|| "no loss is known".to_owned()));
    match drifting(history) {
        Some(share) if share <= NOTABLE => parts.push(format!("the models stayed together{}", seen_by_one(history))),
        None if exchanges > 0 => parts.push("it is not known how far apart the models were".to_owned()),
        _ => {}
    }
    let wrong = troubles(history);
    let last = parts.pop().unwrap_or_default();
    let so_far = format!("The run{name} {}: {}, and {last}", state(history), parts.join(", "));
    match wrong.as_slice() {
        [] => format!("{so_far}; nothing went wrong."),
        [one] => format!("{so_far}; but {one}."),
        [first @ .., last] => format!("{so_far}; but {}, and {last}.", first.join(", ")),
    }
}

fn state(history: &History) -> &'static str {
    let last: Vec<Ended<'_>> = history.nodes.values().filter_map(|node| Some(node.endings().last()?.1)).collect();
    let is_running = |node: &&NodeHistory| matches!(node.endings().last(), Some((_, Ended::Running)));
    let mut running = history.nodes.values().filter(is_running).peekable();
    if running.peek().is_some() {
        let trains = |node: &NodeHistory| node.sample.as_ref().is_none_or(|sample| sample.phase != "completed");
        if running.any(trains) { "is under way" } else { "has ended here and is still served" }
    } else if last.contains(&Ended::InOrder(true)) && !last.contains(&Ended::InOrder(false)) {
        let ends_complete = |node: &&NodeHistory| matches!(node.endings().last(), Some((_, Ended::InOrder(_))));
        let complete: Vec<&NodeHistory> = history.nodes.values().filter(ends_complete).collect();
        match complete.iter().all(|node| node.has_ended_alone()) {
            false => "is complete",
            true if complete.len() == 1 => "is not over, but this node's own part is",
            true => "is not over, but these nodes' own parts are",
        }
    } else if last.contains(&Ended::Unknown) {
        "has no end in these journals"
    } else if last.iter().any(|ended| matches!(ended, Ended::InOrder(_))) {
        "has stopped"
    } else {
        "has broken off"
    }
}

/// A loss, and where a node stood then.
type Measured = (Place, f64);

/// The first and the last loss of a node that is known: on the held-out slice, or of training.
fn losses(node: &NodeHistory, is_held_out: bool) -> Option<(Measured, Measured)> {
    if is_held_out {
        let (first, last) = (node.evaluations.first()?, node.evaluations.last()?);
        return Some(((first.place, first.loss), (last.place, last.loss)));
    }
    let mut known = node.points.iter().filter_map(|point| Some((point.place, point.loss?)));
    let first = known.next()?;
    Some((first, known.next_back().unwrap_or(first)))
}

/// How far the swarm was when a node was last heard of.
fn progress(node: &NodeHistory) -> f64 {
    node.sample.as_ref().map_or(0.0, |sample| sample.progress)
}

/// The run's loss: one kind for all nodes, from the earliest that is known to the mean of those that came to the end.
fn loss(history: &History) -> Option<String> {
    let most = history.nodes.values().map(progress).fold(0.0, f64::max);
    let at_end = || history.nodes.values().filter(|node| progress(node) >= END_SHARE * most);
    let is_held_out = at_end().any(|node| node.evaluations.last().is_some());
    let ends: Vec<Measured> = at_end().filter_map(|node| Some(losses(node, is_held_out)?.1)).collect();
    if ends.is_empty() {
        return None;
    }
    let last = ends.iter().map(|(_, loss)| loss).sum::<f64>() / ends.len() as f64;
    let what = if is_held_out { "the loss on held-out data" } else { "the training loss" };
    // In a short run the first evaluation of a node is its last, and one node's is no beginning of another's.
    let measured = history.nodes.values().filter_map(|node| losses(node, is_held_out));
    let begins = measured.filter(|(begin, end)| begin.0.steps < end.0.steps).map(|(begin, _)| begin);
    let Some((_, first)) = begins.min_by(|one, other| one.0.time.total_cmp(&other.0.time)) else {
        return Some(format!("{what} was {last:.3} {} at the end", unit(history)));
    };
    let way = if last < first { "fell" } else { "went" };
    Some(format!("{what} {way} from {first:.3} to {last:.3} {}", unit(history)))
}

/// What losses are measured in.
pub(super) fn unit(history: &History) -> String {
    let prediction = history.nodes.values().map(|node| node.run.prediction.as_str()).find(|word| !word.is_empty());
    format!("nats per {}", prediction.unwrap_or("prediction"))
}

/// A partner has ratios of its own for the same exchanges.
fn seen_by_one(history: &History) -> &'static str {
    if history.nodes.len() == 1 { ", as this node saw it" } else { "" }
}

/// The share of the time in which models drifted apart, as far as it is known.
fn drifting(history: &History) -> Option<f64> {
    let sum = |of: fn(&NodeHistory) -> u64| history.nodes.values().map(of).sum::<u64>();
    let (known, drifting) = (sum(|node| node.ratios.0), sum(|node| node.ratios.2));
    (known > 0).then(|| drifting as f64 / known as f64)
}

fn troubles(history: &History) -> Vec<String> {
    let (mut broken, mut failed) = (0, 0);
    for (_, ended) in history.nodes.values().flat_map(|node| node.endings()) {
        broken += u64::from(ended == Ended::BrokeOff);
        failed += u64::from(matches!(ended, Ended::Failed(_)));
    }
    let mut all = Vec::new();
    if failed > 0 {
        all.push(format!("training failed {}", times(failed)));
    }
    if broken > 0 {
        all.push(format!("a node broke off {}", times(broken)));
    }
    if let Some(share) = drifting(history).filter(|share| *share > NOTABLE) {
        all.push(format!(
            "the models were further apart than they should be for {} of the time together{}",
            figures::share(share),
            seen_by_one(history)
        ));
    }
    let apart = history.nodes.values().map(|node| node.apart_seconds).fold(0.0, f64::max);
    if apart > 0.0 {
        let apart = duration(Duration::try_from_secs_f64(apart).unwrap_or_default());
        all.push(format!("members that were connected averaged with nobody for {apart}"));
    }
    if let Some(apart) = history.clocks_apart() {
        let apart = duration(Duration::try_from_secs_f64(apart).unwrap_or_default());
        all.push(format!("the clocks of two machines differ by {apart} or more"));
    }
    let counts: Vec<(u64, u64)> = history.nodes.values().map(NodeHistory::exchanges).collect();
    let (done, lost) =
        (counts.iter().map(|counts| counts.0).sum::<u64>(), counts.iter().map(|counts| counts.1).sum::<u64>());
    let share = lost as f64 / (done + lost).max(1) as f64;
    if share > NOTABLE {
        all.push(format!("{} of {} failed", figures::share(share), counted(done + lost, "exchange")));
    }
    // What nodes said themselves.
    let warnings: u64 = history.nodes.values().map(|node| node.events.len() as u64 + node.events_left_out).sum();
    if warnings > 0 {
        all.push(format!("{} {} given", counted(warnings, "warning"), if warnings == 1 { "was" } else { "were" }));
    }
    all
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}
