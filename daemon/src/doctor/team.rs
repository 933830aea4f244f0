//! Whether a team with some helpers is worth it: what machines and links reach is measured, the best cut of the model reckoned with
//! it, and a team that would be slower than this machine alone is not recommended.

use murmur_network::{Keypair, TrafficCounter};
use murmur_protocol::team::bounds::GAIN_MIN;
use murmur_protocol::team::{Cut, Link, ModelCosts, Place, Wire, cut};
use murmur_protocol::{HelperLine, PeerId, RunManifest};
use murmur_training::TrainingOptions;
use murmur_training::ops::Kernels;
use murmur_training::team::{captain_needs, costs};
use tokio::runtime::Runtime;

use super::machine::measure_step;
use super::{Finding, Measured};
use crate::console::figures::count;
use crate::console::{Console, human_bytes};
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::setup::devices::Devices;
use crate::team::captain::{self, Own};
use crate::team::probing::{Way, probe};
use crate::team::{trial, words};

/// Looks at the team of this machine and the helpers of its settings. What it would train a second, where this machine alone cannot
/// train the run and the team can.
pub(crate) fn check_team(
    (manifest, settings): (&RunManifest, &NodeSettings),
    alone: Option<&Measured>,
    runtime: &Runtime,
    findings: &mut Vec<Finding>,
) -> Option<f64> {
    let lines = captain::check(manifest, settings).and_then(|()| captain::lines(settings));
    let opened = lines.and_then(|lines| Ok((lines, Devices::open(&settings.training)?)));
    let (lines, devices) = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            findings.push(Finding::of_failure("team", &failure));
            return None;
        }
    };
    let (short, identity, device) = (trial::shortened(manifest), Keypair::generate_ed25519(), &devices.all[0]);
    let options = devices.options(&settings.training);
    let own = Own { identity: &identity, manifest: &short, settings, device, options, console: Console::Text };
    let found: Vec<(PeerId, Place)> =
        lines.into_iter().filter_map(|line| check_helper(&own, line, runtime, findings)).collect();
    if found.is_empty() {
        return None;
    }
    let (wire, threads) = (captain::wire(settings), rayon::current_num_threads());
    let kernels = if device.is_cpu() { Kernels::Fused } else { Kernels::Cuda };
    let (costs, microbatches) = planned(manifest, &options, (wire, threads, kernels));
    let of_machine = captain::place(&Own { manifest, ..own });
    let with = (&options, wire, threads, kernels);
    let speed = match alone {
        Some(measured) => Some(operations(&costs, microbatches) / measured.step_seconds),
        None => speed_with(&short, settings, with),
    };
    let speed = speed.unwrap_or(of_machine.operations_per_second);
    // The fastest of its ways says what its own link bears at least.
    let rate =
        |cap: f64, of: fn(&Link) -> f64| found.iter().map(|(_, place)| of(&place.link)).fold(0.0, f64::max).min(cap);
    let link = Link {
        up: rate(of_machine.link.up, |link| link.down),
        down: rate(of_machine.link.down, |link| link.up),
        latency: 0.0,
    };
    let captain = Place { operations_per_second: speed, link, ..of_machine };
    let team = cut::best_team(&costs, &captain, &found, microbatches);
    let alone = alone.map(|measured| measured.tokens_per_second);
    let (least, _) = captain_needs(manifest, &options, (wire, threads, kernels));
    if team.is_none() && alone.is_none() && captain.memory_bytes < least {
        let text = format!("{}, and has {}", captain::needs(&human_bytes(least)), human_bytes(captain.memory_bytes));
        let fix = "give training.memory_gigabytes more, or let the larger machine be the captain";
        findings.push(Finding::problem("team", text, fix));
        return None;
    }
    let missing = || cut::best(&costs, &captain, &found, microbatches).err().unwrap_or(0);
    findings.push(judge(&costs, team.as_ref(), alone, missing));
    team.filter(|_| alone.is_none()).map(|team| team.tokens_per_second)
}

/// What the model costs, and the microbatches of a batch.
fn planned(
    manifest: &RunManifest,
    options: &TrainingOptions,
    (wire, threads, kernels): (Wire, usize, Kernels),
) -> (ModelCosts, u32) {
    let (costs, lanes) = costs(manifest, options, threads, wire, kernels);
    (costs, lanes.iter().sum::<usize>() as u32)
}

/// Of all of a batch.
fn operations(costs: &ModelCosts, microbatches: u32) -> f64 {
    let ModelCosts { layers, layer, embedding, head, .. } = costs;
    f64::from(microbatches) * (embedding.operations + head.operations + f64::from(*layers) * layer.operations)
}

/// Operations a second that a captain reaches in steps of the run's model, or of some of its layers where it has no room for all: what a
/// team is compared with. `None` where it can take no step.
pub(crate) fn own_speed(manifest: &RunManifest, settings: &NodeSettings, devices: &Devices) -> Option<f64> {
    let kernels = if devices.all[0].is_cpu() { Kernels::Fused } else { Kernels::Cuda };
    let options = devices.options(&settings.training);
    let with = (&options, captain::wire(settings), rayon::current_num_threads(), kernels);
    speed_with(manifest, settings, with).or_else(|| speed_with(&trial::shortened(manifest), settings, with))
}

fn speed_with(
    manifest: &RunManifest,
    settings: &NodeSettings,
    (options, wire, threads, kernels): (&TrainingOptions, Wire, usize, Kernels),
) -> Option<f64> {
    let (costs, microbatches) = planned(manifest, options, (wire, threads, kernels));
    measure_step(manifest, settings).map(|seconds| operations(&costs, microbatches) / seconds)
}

/// A helper's machine and link, measured.
fn check_helper(
    own: &Own<'_>,
    line: HelperLine,
    runtime: &Runtime,
    findings: &mut Vec<Finding>,
) -> Option<(PeerId, Place)> {
    let name = line.helper.short();
    let found = measure_helper(own, &line, runtime);
    match found {
        Ok(place) => {
            let Place { memory_bytes, operations_per_second, link } = place;
            let text = format!(
                "{name} lends {}, computes {:.1} billion operations a second of this model, {:.1} Mbit/s there and {:.1} back, {:.1} ms",
                human_bytes(memory_bytes),
                operations_per_second / 1e9,
                8e-6 * link.down,
                8e-6 * link.up,
                1e3 * link.latency
            );
            findings.push(Finding::good("helper", text));
            Some((line.helper, place))
        }
        Err(failure) => {
            findings.push(Finding::of_failure("helper", &failure));
            None
        }
    }
}

fn measure_helper(own: &Own<'_>, line: &HelperLine, runtime: &Runtime) -> Result<Place, Failure> {
    let name = line.helper.short();
    let asked = async {
        let (counter, throttle) = (TrafficCounter::default(), captain::throttle(own.settings));
        let dialed = captain::dial_once(own, line, (&counter, &throttle)).await;
        let mut link = dialed.map_err(|error| captain::refusal(line, &error))?;
        let failed =
            |error: String| Failure::new(ExitCode::Network, format!("helper {name}: {error}")).hint("try again");
        probe(&mut link).await.map_err(failed)
    };
    let way = runtime.block_on(asked)?;
    let speed = trial::helper_speed(own, line.clone()).map_err(|error| {
        let (code, hint) = match error.downcast_ref::<Failure>() {
            Some(failure) => (failure.code(), failure.remedy().to_owned()),
            None => (ExitCode::Failure, "see what `murmur lend` says there".to_owned()),
        };
        Failure::new(code, format!("helper {name}: {error}")).hint(hint)
    })?;
    let offer = Way::bounded(&way.link, way.offer);
    let (up, down) = (offer.up_bytes_per_second as f64, offer.down_bytes_per_second as f64);
    let link = Link { up, down, ..way.link };
    Ok(Place { memory_bytes: offer.memory_bytes, operations_per_second: speed, link })
}

/// What is to be done: `missing` says how many bytes are, where no team fits.
fn judge(costs: &ModelCosts, team: Option<&Cut>, alone: Option<f64>, missing: impl FnOnce() -> u64) -> Finding {
    let whole =
        "do without a team; the other machines can join the swarm with `murmur join`, with the whole model each";
    match (team, alone) {
        (None, None) => {
            let text = format!("the model fits neither here nor in this team: {} are missing", human_bytes(missing()));
            Finding::problem("team", text, "add a machine with `murmur lend`, or give the helpers more --memory")
        }
        (None, Some(alone)) => {
            let text = format!(
                "no cut of the model fits these helpers; this machine alone trains {} tokens/s",
                count(alone.round() as u64)
            );
            Finding::warning("team", text, whole)
        }
        (Some(cut), None) => Finding::good("team", format!("the model does not fit here alone; {}", told(costs, cut))),
        (Some(cut), Some(alone)) if cut.tokens_per_second > alone * (1.0 + GAIN_MIN) => {
            Finding::good("team", format!("alone {} tokens/s; {}", count(alone.round() as u64), told(costs, cut)))
        }
        (Some(cut), Some(alone)) => {
            let rate = cut.tokens_per_second;
            let how = if rate < alone * (1.0 - GAIN_MIN) { "slower" } else { "no faster" };
            let text = format!(
                "a team would be {how}: {} tokens/s at best, alone {} tokens/s",
                count(rate.round() as u64),
                count(alone.round() as u64)
            );
            Finding::warning("team", text, whole)
        }
    }
}

/// A cut in a line, with the memory that it takes.
fn told(costs: &ModelCosts, cut: &Cut) -> String {
    let bytes = cut::bytes_of(costs, cut);
    let on_helpers = cut.of_helpers().zip(&bytes[1..]);
    let on_helpers =
        on_helpers.map(|((_, helper, _), bytes)| format!(", {} on {}", human_bytes(*bytes), helper.short()));
    format!(
        "a team {} tokens/s: {}; it takes {} here{}",
        count(cut.tokens_per_second.round() as u64),
        words::described(cut),
        human_bytes(bytes[0]),
        on_helpers.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use murmur_protocol::team::LayerCosts;

    use super::*;
    use crate::doctor::Health;

    /// Ten layers of a second each on a machine of speed 1.
    fn costs() -> ModelCosts {
        let layer = LayerCosts { operations: 1.0, bytes: 1_000_000_000, ..LayerCosts::default() };
        let end = LayerCosts { operations: 0.0, bytes: 1_000_000, ..layer };
        ModelCosts {
            layers: 10,
            layer,
            embedding: end,
            head: end,
            stream_bytes: 1000,
            stage_bytes: 0,
            batch_tokens: 800,
            borders: Vec::new(),
        }
    }

    fn judged(memory_gigabytes: u64, rate: f64, is_alone: bool) -> Finding {
        let place = |memory_bytes, rate| {
            let link = Link { up: rate, down: rate, latency: 0.0 };
            Place { memory_bytes, operations_per_second: 1.0, link }
        };
        let helpers = [(PeerId::from_public_key([7; 32]), place(memory_gigabytes * 1_000_000_000, rate))];
        let captain = place(if is_alone { 20_000_000_000 } else { 6_000_000_000 }, f64::INFINITY);
        let team = cut::best_team(&costs(), &captain, &helpers, 8);
        let missing = || cut::best(&costs(), &captain, &helpers, 8).expect_err("none fits");
        // Eight microbatches of ten seconds.
        judge(&costs(), team.as_ref(), is_alone.then_some(10.0), missing)
    }

    #[test]
    fn a_team_is_recommended_where_it_is_faster_or_the_only_way() {
        let faster = judged(8, 1e6, true);
        assert_eq!(faster.health, Health::Good);
        // Half of the layers each: eight microbatches and one more of five seconds.
        assert!(faster.text.starts_with("alone 10 tokens/s; a team 18 tokens/s: layers 0-4 on "), "{}", faster.text);
        assert!(faster.text.contains("it takes 5.00 GB here, 5.00 GB on "), "{}", faster.text);
        let only = judged(8, 1e6, false);
        assert!(
            only.health == Health::Good
                && only.text.starts_with("the model does not fit here alone; a team 18 tokens/s")
        );
    }

    #[test]
    fn a_team_that_is_slower_or_does_not_fit_is_not_recommended() {
        // A stream takes five seconds, twice there and twice back.
        let slower = judged(8, 200.0, true);
        assert_eq!(slower.health, Health::Warning);
        assert!(
            slower.text.starts_with("a team would be slower: ") && slower.fix.contains("murmur join"),
            "{}",
            slower.text
        );
        let even = judged(8, 260.0, true);
        assert!(even.text.starts_with("a team would be no faster: "), "{}", even.text);
        let neither = judged(2, 1e6, false);
        assert!(neither.health == Health::Problem && neither.text.contains("are missing"), "{}", neither.text);
        assert_eq!(judged(0, 1e6, true).health, Health::Warning);
    }
}
