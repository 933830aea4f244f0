//! In which order a stage computes forwards and backwards: one forward, one backward (PipeDream-Flush, Narayanan et al.,
//! arXiv 2006.09503).
//!
//! A stage runs ahead by as many forwards as stages follow it, then takes a backward after each forward, and ends with the
//! backwards that are left: all of a batch is through before the optimizer steps. So it holds the activations of at most as
//! many microbatches as there are stages from it to the end, and every sum has a fixed order.

/// One thing that a stage does, with the number of its microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Forward(usize),
    Backward(usize),
}

/// Microbatches whose activations a stage holds at most.
pub(crate) fn in_flight(stage: usize, stages: usize, microbatches: usize) -> usize {
    (stages - stage).min(microbatches)
}

/// All that a stage does for a batch.
pub(super) fn actions(stage: usize, stages: usize, microbatches: usize) -> Vec<Action> {
    let ahead = in_flight(stage, stages, microbatches).saturating_sub(1);
    let begin = (0..ahead).map(Action::Forward);
    let steady = (ahead..microbatches).flat_map(|next| [Action::Forward(next), Action::Backward(next - ahead)]);
    let end = (microbatches - ahead..microbatches).map(Action::Backward);
    begin.chain(steady).chain(end).collect()
}

/// The share of the time of all stages in which they compute, where a microbatch takes stages this long, in any unit: the rest
/// is the bubble, and waiting for the slowest.
pub(crate) fn busy(seconds: &[f64], microbatches: usize) -> f64 {
    let (stages, slowest) = (seconds.len(), seconds.iter().copied().fold(0.0, f64::max));
    let total = slowest * (microbatches + stages - 1) as f64 * stages as f64;
    seconds.iter().sum::<f64>() * microbatches as f64 / total
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out what each stage wants, as far as its neighbours have come.
    #[test]
    fn every_microbatch_passes_all_stages_in_order_and_few_wait() {
        for (stages, microbatches) in [(1, 1), (1, 5), (2, 1), (2, 4), (3, 2), (4, 16), (6, 7)] {
            let orders: Vec<Vec<Action>> = (0..stages).map(|stage| actions(stage, stages, microbatches)).collect();
            let (mut done, mut forwards, mut backwards) = (vec![0; stages], vec![0; stages], vec![0; stages]);
            loop {
                let may = |stage: usize| match orders[stage].get(done[stage]) {
                    Some(Action::Forward(next)) => {
                        assert_eq!(*next, forwards[stage], "in order");
                        stage == 0 || forwards[stage - 1] > *next
                    }
                    Some(Action::Backward(next)) => {
                        assert_eq!(*next, backwards[stage], "in order");
                        assert!(forwards[stage] > *next, "after its forward");
                        stage + 1 == stages || backwards[stage + 1] > *next
                    }
                    None => false,
                };
                let Some(stage) = (0..stages).find(|stage| may(*stage)) else { break };
                match orders[stage][done[stage]] {
                    Action::Forward(_) => forwards[stage] += 1,
                    Action::Backward(_) => backwards[stage] += 1,
                }
                done[stage] += 1;
                assert!(forwards[stage] - backwards[stage] <= stages - stage, "few wait");
            }
            assert_eq!((forwards, backwards), (vec![microbatches; stages], vec![microbatches; stages]), "no deadlock");
        }
    }

    #[test]
    fn the_bubble_is_that_of_the_formula() {
        assert_eq!(busy(&[1.0], 4), 1.0);
        assert!((busy(&[1.0; 2], 16) - 16.0 / 17.0).abs() < 1e-12);
        assert!((busy(&[1.0; 4], 16) - 16.0 / 19.0).abs() < 1e-12);
        assert!((busy(&[1.0, 0.5], 16) - 0.75 * 16.0 / 17.0).abs() < 1e-12);
    }
}
