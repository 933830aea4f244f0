//! The built-in scenarios parse, draw the same run from the same seed, and pass their checks; what makes no sense is
//! refused by name.

use std::sync::atomic::AtomicBool;

use murmur_protocol::Start;
use murmur_sim::file::{Drawn, MEMORY_BYTES_MAX, Plan, ScenarioFile, built_in, built_ins};
use murmur_sim::report::SeedReport;
use murmur_sim::runner::{Heard, Trace, check_determinism, run_seed, run_seeds};
use murmur_sim::{Disk, Incident, NodePlan};

static NEVER: AtomicBool = AtomicBool::new(false);

fn read(text: &str) -> ScenarioFile {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn scenario(name: &str) -> ScenarioFile {
    read(built_in(name).expect("a built-in scenario").text)
}

/// Why a file is refused.
fn mistake(text: &str) -> String {
    read(text).validate().expect_err("a mistake").to_string()
}

#[test]
fn every_file_of_the_folder_is_built_in_and_valid() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sim");
    let files = std::fs::read_dir(folder).expect("there").count();
    assert_eq!(files, built_ins().len());
    for scenario in built_ins() {
        let file = read(scenario.text);
        assert_eq!(file.validate(), Ok(()), "{}", scenario.name);
        assert!(!file.scenario.about.is_empty(), "{}", scenario.name);
        assert!(file.memory_bytes() * 8 < MEMORY_BYTES_MAX, "{}: {}", scenario.name, file.memory_bytes());
    }
}

/// The annotated file is the reference, so nothing may be missing in it.
#[test]
fn the_scenario_of_everything_has_every_kind_of_fault() {
    let ScenarioFile {
        crashes,
        leaves,
        churn,
        pauses,
        breaks,
        partition,
        stragglers,
        slowdowns,
        slow_lines,
        bad_links,
        clocks,
        full_disks,
        liars,
        crowd,
        rests,
        relays,
        lost_addresses,
        hints,
        outdated,
        doubles,
        finish,
        ..
    } = scenario("everything");
    assert!(crashes.is_some() && leaves.is_some() && churn.is_some() && pauses.is_some() && breaks.is_some());
    assert!(partition.is_some() && stragglers.is_some() && slowdowns.is_some() && slow_lines.is_some());
    assert!(bad_links.is_some() && clocks.is_some() && full_disks.is_some() && liars.is_some() && crowd.is_some());
    assert!(rests.is_some() && relays.is_some() && lost_addresses.is_some() && hints.is_some() && finish.is_some());
    assert!(outdated.is_some() && doubles.is_some());
}

#[test]
fn every_built_in_scenario_passes_its_checks() {
    for scenario in built_ins() {
        let report = run_seed(&read(scenario.text), 6, Trace::Off, &NEVER).expect("not interrupted").report;
        assert!(report.has_passed(), "{}: murmur sim replay {0} --seed 6\n{:#?}", scenario.name, report.verdicts);
        assert!(report.summary.exchanges_completed > 0 && report.summary.payload_bytes > 0, "{}", scenario.name);
    }
}

/// The points of a plan that a reader of its Debug form would compare.
fn shown(plan: &Plan) -> String {
    format!("{plan:?}")
}

#[test]
fn a_file_and_a_seed_decide_the_plan() {
    let file = scenario("everything");
    assert_eq!(shown(&file.draw(7)), shown(&file.draw(7)));
    assert_ne!(shown(&file.draw(7)), shown(&file.draw(8)));
    let drawn = file.draw(7).drawn;
    assert!(drawn.iter().any(|(key, _)| key == "swarm.nodes"), "{drawn:?}");
    let sizes: Vec<usize> = (0..40).map(|seed| file.draw(seed).scenario.nodes.len()).collect();
    assert!(sizes.iter().max() > sizes.iter().min(), "{sizes:?}");
}

#[test]
fn a_key_that_is_added_shifts_no_other_draw() {
    let file = scenario("churn");
    let with_pauses = read(&format!("{}\n[pauses]\nshare = 0.5\n", built_in("churn").expect("there").text));
    let restarts = |file: &ScenarioFile| {
        let incidents = file.draw(3).scenario.incidents.into_iter();
        let restarts = incidents.filter(|(_, incident)| matches!(incident, Incident::Restart { .. }));
        restarts.map(|incident| format!("{incident:?}")).collect::<Vec<_>>()
    };
    assert_eq!(restarts(&file), restarts(&with_pauses));
}

#[test]
fn faults_stay_in_their_phase_and_the_first_node_stays() {
    let file = scenario("everything");
    for seed in 0..200 {
        let plan = file.draw(seed);
        let first_is_there = plan.expectations.present.first() == Some(&0);
        assert!(first_is_there && plan.scenario.nodes[0].lie.is_none(), "seed {seed}");
        for (time, incident) in &plan.scenario.incidents {
            let is_calm = matches!(incident, Incident::StopReporting);
            assert!(is_calm || *time <= plan.faults_end, "seed {seed}: {incident:?} at {time:?}");
            if let Incident::Crash(host) | Incident::Restart { host, .. } | Incident::Leave(host) = incident {
                assert!(*host != 0 && *time > plan.scenario.nodes[*host].begins_at, "seed {seed}: {incident:?}");
            }
        }
    }
}

#[test]
fn churn_replaces_its_share_with_strangers_that_have_nothing() {
    let plan = scenario("churn").draw(1);
    let replaced =
        plan.scenario.incidents.iter().filter(|(_, incident)| {
            matches!(incident, Incident::Restart { same_identity: false, disk: Disk::Lost, .. })
        });
    // 20 nodes, rounds of one second: a fifth every five of 60 s.
    assert_eq!(replaced.count(), 4 * 11);
}

#[test]
fn seeds_come_in_order_and_alike_whatever_the_threads() {
    let mut file = scenario("churn");
    file.swarm.nodes = Drawn::fixed(6);
    let run = |jobs| {
        let mut told = Vec::new();
        let reports = run_seeds(&file, 3..9, jobs, Trace::Off, &NEVER, |heard| {
            if let Heard::Seed(ended) = heard {
                told.push(ended.report.seed);
            }
        });
        assert_eq!(told, [3, 4, 5, 6, 7, 8]);
        let timeless = |report: SeedReport| SeedReport { real_seconds: 0.0, ..report };
        reports.into_iter().map(timeless).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn an_interrupted_run_keeps_what_has_ended() {
    let mut file = scenario("calm");
    file.swarm.nodes = Drawn::fixed(2);
    let interrupted = AtomicBool::new(false);
    let reports = run_seeds(&file, 0..1_000_000, 2, Trace::Off, &interrupted, |heard| {
        if let Heard::Seed(ended) = heard
            && ended.report.seed == 2
        {
            interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    // How many more end before the third is heard of is the operating system's affair.
    assert!((3..1000).contains(&reports.len()), "{} of a million", reports.len());
    assert!(reports.iter().map(|report| report.seed).is_sorted());
}

#[test]
fn one_seed_gives_one_run() {
    let mut file = scenario("everything");
    file.swarm.nodes = Drawn::fixed(8);
    let repetition = check_determinism(&file, 5, &NEVER).expect("not interrupted");
    assert_eq!(repetition.divergence, None);
    let report = run_seed(&file, 5, Trace::On, &NEVER).expect("not interrupted");
    assert_eq!(report.report.trace_digest, repetition.digest, "a trace on request changes nothing");
    assert!(report.changes.len() > 100, "{}", report.changes.len());
}

#[test]
fn contradictions_are_named_with_their_key() {
    let expected = [
        ("[swarm]\nnodes = [1, 8]\n", "swarm.nodes = [1, 8]"),
        ("[network]\nloss = 1.5\n", "network.loss = 1.5"),
        ("[network]\nloss = nan\n", "network.loss = NaN"),
        ("[gossip]\ngamma = [0.2, 0.8]\n", "gossip.gamma = 0.8"),
        ("[swarm]\nnodes = [4, 8]\n[partition]\ngroups = 5\n", "partition.groups = 5: swarm.nodes = [4, 8] may be"),
        (
            "[crashes]\nat_seconds = [10, 90]\n",
            "crashes.at_seconds = [10, 90]: faults end at phases.faults_seconds = 60",
        ),
        ("[crowd]\nat_seconds = 59\nwithin_seconds = 2\n", "crowd.within_seconds = 61: faults end"),
        ("[liars]\nshare = 1.0\n", "liars.share = 1: somebody must be honest"),
        ("[liars]\nkinds = []\n", "liars.kinds = []"),
        ("[partition]\ngroups = 3\none_way_chance = 0.5\n", "partition.one_way_chance = 0.5"),
        (
            "[pauses]\nat_seconds = 10\nseconds = 300\n",
            "pauses.seconds = 300: nodes go on before half of phases.calm_seconds = 60 is over",
        ),
        ("[finish]\nsteps = 5000\n", "finish.steps = 5000: a run that takes 120 s is over by then"),
        ("[phases]\nfaults_seconds = 0\n", "phases.faults_seconds = 0"),
        ("[model]\nlayers = 2\n", "trainer.kind = quadratic: [model] is for the transformer"),
        ("[trainer]\nkind = \"transformer\"\n[model]\nheads = 5\n", "model.width = 64"),
        ("[trainer]\nkind = \"transformer\"\n[model]\nkind = \"mlp\"\n", "[model] is of another kind"),
    ];
    for (text, message) in expected {
        assert!(mistake(text).contains(message), "{}", mistake(text));
    }
}

#[test]
fn absurd_sizes_have_absurd_estimates() {
    let file = read("[swarm]\nnodes = 4000\nparameters = 100_000_000\n");
    assert_eq!(file.validate(), Ok(()));
    assert!(file.memory_bytes() > 1000 * MEMORY_BYTES_MAX);
    let file = read(
        "[swarm]\nnodes = 64\nstep_seconds = 3600\n[phases]\nfaults_seconds = 1e6\n[breaks]\nper_node_and_minute = 600\n",
    );
    assert_eq!(file.validate(), Ok(()));
    assert!(file.memory_bytes() > 10 * MEMORY_BYTES_MAX, "{} bytes", file.memory_bytes());
}

/// As in a run file: 1 to 10,000 steps.
#[test]
fn intervals_beyond_where_a_run_usually_stays_are_taken() {
    for steps in [1, 500] {
        let file = read(&format!("[gossip]\ninterval_steps = {steps}\n"));
        assert_eq!(file.validate(), Ok(()));
        assert_eq!(file.draw(0).scenario.gossip.interval_steps, steps);
    }
}

#[test]
fn joiners_have_lines_like_those_before_them() {
    let file = read("[lines]\nuplink_bytes_per_second = 20e3\ndownlink_bytes_per_second = 30e3\n[crowd]\nshare = 3\n");
    let nodes = file.draw(0).scenario.nodes;
    assert!(nodes.iter().any(|plan| plan.start == Start::FromPeer));
    let lines = |plan: &NodePlan| (plan.uplink_bytes_per_second, plan.downlink_bytes_per_second);
    assert!(nodes.iter().all(|plan| lines(plan) == (20e3, 30e3)), "{nodes:?}");
}

/// How far models are apart when learning ends is looked at then.
#[test]
fn a_seed_is_looked_at_when_its_own_faults_end() {
    let mut file = scenario("calm");
    (file.swarm.nodes, file.phases.faults_seconds) = (Drawn::fixed(3), Drawn::between(20.0, 1000.0));
    let plan = file.draw(1);
    let report = run_seed(&file, 1, Trace::Off, &NEVER).expect("not interrupted").report;
    let end = plan.faults_end.as_secs_f64();
    let at_end = report.series.iter().find(|point| point.seconds == end).expect("a point at that moment");
    assert_eq!(report.summary.disagreement, at_end.disagreement);
    assert!(report.has_passed() && report.not_asked.contains(&"completed".to_owned()), "{report:?}");
    assert!(report.not_asked.contains(&"only held".to_owned()), "{:?}", report.not_asked);
}

/// Optima that lie further from each other than the first model lies from them; steps of a minute.
#[test]
fn checks_hold_for_swarms_of_other_scales() {
    for text in [
        "[swarm]\nnodes = 6\n[trainer]\nspread = 10\n",
        "[swarm]\nnodes = 6\nstep_seconds = 60\n[phases]\nfaults_seconds = 3600\ncalm_seconds = 3600\n",
    ] {
        let mut file = read(text);
        file.checks.disagreement_max = 1.0;
        for seed in 0..3 {
            let report = run_seed(&file, seed, Trace::Off, &NEVER).expect("not interrupted").report;
            let failed: Vec<_> = report.verdicts.iter().filter(|verdict| verdict.finding.is_some()).collect();
            assert!(failed.is_empty(), "{text}: {failed:?}");
        }
    }
}

#[test]
fn a_range_of_seeds_ends_at_the_last_number() {
    let mut file = scenario("calm");
    file.swarm.nodes = Drawn::fixed(2);
    let reports = run_seeds(&file, u64::MAX - 2..u64::MAX, 2, Trace::Off, &NEVER, |_| {});
    assert_eq!(reports.iter().map(|report| report.seed).collect::<Vec<_>>(), [u64::MAX - 2, u64::MAX - 1]);
}
