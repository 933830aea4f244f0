//! The smallest driver, held to the promises of an exchange: the pair meets, in the middle, and counts alike.

#[path = "../examples/two_nodes.rs"]
#[allow(dead_code, unreachable_pub)]
mod driver;

use self::driver::{Outcome, run};

fn quiet_run() -> Outcome {
    run(|_| {})
}

#[test]
fn two_nodes_meet() {
    let Outcome { sides: [one, other], distances } = quiet_run();
    for (one, other) in one.model.iter().zip(&other.model) {
        assert!((one - other).abs() < 1e-4, "{one} and {other} after {} exchanges", distances.len());
    }
    let farthest = distances.iter().copied().fold(0.0, f64::max);
    assert!(farthest > 1.0, "they were never apart, so meeting proves nothing: {farthest}");
}

#[test]
fn their_mean_is_where_their_own_steps_put_it() {
    let Outcome { sides: [one, other], .. } = quiet_run();
    for index in 0..one.model.len() {
        let mean = (f64::from(one.model[index]) + f64::from(other.model[index])) / 2.0;
        let by_steps_alone = 0.5 + (one.local[index] + other.local[index]) / 2.0;
        assert!((mean - by_steps_alone).abs() < 1e-5, "{mean} instead of {by_steps_alone}");
    }
}

#[test]
fn both_count_the_same_exchanges() {
    let Outcome { sides: [one, other], distances } = quiet_run();
    let (one, other) = (one.node.status().exchanges, other.node.status().exchanges);
    assert_eq!(one.completed_as_starter, other.completed_as_responder);
    assert_eq!(one.completed_as_responder, other.completed_as_starter);
    assert_eq!(one.completed() + other.completed(), distances.len() as u64);
    assert_eq!((one.failed(), other.failed()), (0, 0));
}
