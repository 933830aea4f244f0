//! In which order a stage computes forwards and backwards: one forward, one backward (PipeDream-Flush, Narayanan et al.,
//! arXiv 2006.09503).
//!
//! A stage runs ahead by some forwards, then takes a backward after each forward, and ends with the backwards that are left: all of
//! a batch is through before the optimizer steps. So it holds the activations of a bounded number of microbatches, and every sum
//! has a fixed order. Where streams take no time between stages, as many as there are stages from it to the end are enough; where they
//! do, a hop counts as stages.

/// One thing that a stage does, with the number of its microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The forward.
    Forward(usize),
    /// The backward.
    Backward(usize),
}

/// Microbatches whose activations a stage holds at most, where streams take no time between stages.
pub fn in_flight(stage: usize, stages: usize, microbatches: usize) -> usize {
    (stages - stage).min(microbatches)
}

/// The order of one stage.
///
/// No stage waits for another in a circle where each holds as many microbatches as the next one or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Forwards before the first backward, less one.
    ahead: usize,
    microbatches: usize,
    /// Actions of the batch.
    actions: usize,
    /// Actions behind.
    done: usize,
}

impl Schedule {
    /// Of a stage that holds so many microbatches at most, at least 1.
    pub fn new(in_flight: usize, microbatches: usize) -> Schedule {
        let ahead = in_flight.min(microbatches).saturating_sub(1);
        Schedule { ahead, microbatches, actions: 2 * microbatches, done: 0 }
    }

    /// Of forwards alone, as an evaluation has them.
    pub fn of_forwards(microbatches: usize) -> Schedule {
        Schedule { ahead: microbatches, microbatches, actions: microbatches, done: 0 }
    }

    /// What comes next; `None` at the end of the batch.
    pub fn next_action(&self) -> Option<Action> {
        let Schedule { ahead, microbatches, actions, done } = *self;
        let paired = 2 * (microbatches - ahead);
        if done >= actions {
            None
        } else if done < ahead {
            Some(Action::Forward(done))
        } else if done < ahead + paired {
            let (pair, is_backward) = ((done - ahead) / 2, (done - ahead) % 2 == 1);
            Some(if is_backward { Action::Backward(pair) } else { Action::Forward(ahead + pair) })
        } else {
            Some(Action::Backward(done - microbatches))
        }
    }

    /// It is done.
    pub fn advance(&mut self) {
        self.done += 1;
    }

    /// Forwards and backwards that are done.
    pub fn done(&self) -> (usize, usize) {
        match self.next_action() {
            Some(Action::Forward(next)) => (next, self.done - next),
            Some(Action::Backward(next)) => (self.done - next, next),
            None => (self.microbatches, self.done - self.microbatches),
        }
    }
}

impl Iterator for Schedule {
    type Item = Action;

    fn next(&mut self) -> Option<Action> {
        let action = self.next_action()?;
        self.advance();
        Some(action)
    }
}

/// The share of the time of all stages in which they compute, where a microbatch takes stages this long, in any unit: the rest
/// is the bubble, and waiting for the slowest.
pub fn busy(seconds: &[f64], microbatches: usize) -> f64 {
    let (stages, slowest) = (seconds.len(), seconds.iter().copied().fold(0.0, f64::max));
    let total = slowest * (microbatches + stages - 1) as f64 * stages as f64;
    seconds.iter().sum::<f64>() * microbatches as f64 / total
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out what each stage wants, as far as its neighbours have come.
    fn every_microbatch_passes(held: &[usize], microbatches: usize) {
        let stages = held.len();
        let orders: Vec<Vec<Action>> = held.iter().map(|held| Schedule::new(*held, microbatches).collect()).collect();
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
            let mut schedule = Schedule::new(held[stage], microbatches);
            (0..done[stage]).for_each(|_| schedule.advance());
            assert_eq!(schedule.done(), (forwards[stage], backwards[stage]));
            assert!(forwards[stage] - backwards[stage] <= held[stage], "few wait");
        }
        assert_eq!((forwards, backwards), (vec![microbatches; stages], vec![microbatches; stages]), "no deadlock");
    }

    #[test]
    fn every_microbatch_passes_all_stages_in_order_and_few_wait() {
        for (stages, microbatches) in [(1, 1), (1, 5), (2, 1), (2, 4), (3, 2), (4, 16), (6, 7)] {
            let held: Vec<usize> = (0..stages).map(|stage| in_flight(stage, stages, microbatches)).collect();
            every_microbatch_passes(&held, microbatches);
        }
    }

    #[test]
    fn stages_may_hold_more_as_long_as_none_holds_more_than_the_one_before() {
        for held in [&[4, 1][..], &[9, 5, 5, 1], &[3, 3, 3], &[7, 6, 2, 2, 1]] {
            (1..12).for_each(|microbatches| every_microbatch_passes(held, microbatches));
        }
    }

    #[test]
    fn an_evaluation_has_forwards_alone() {
        let all: Vec<Action> = Schedule::of_forwards(3).collect();
        assert_eq!(all, [Action::Forward(0), Action::Forward(1), Action::Forward(2)]);
        let mut schedule = Schedule::of_forwards(2);
        schedule.nth(1);
        assert_eq!((schedule.done(), schedule.next_action()), ((2, 0), None));
    }

    #[test]
    fn the_bubble_is_that_of_the_formula() {
        assert_eq!(busy(&[1.0], 4), 1.0);
        assert!((busy(&[1.0; 2], 16) - 16.0 / 17.0).abs() < 1e-12);
        assert!((busy(&[1.0; 4], 16) - 16.0 / 19.0).abs() < 1e-12);
        assert!((busy(&[1.0, 0.5], 16) - 0.75 * 16.0 / 17.0).abs() < 1e-12);
    }
}
