//! Who knows whom, in the simulator: degrees, deaths, splits, and members that come back.

use murmur_sim::{HostIndex, Incident, NetworkSpec, NodePlan, Scenario, Swarm};

use murmur_protocol::bounds::{AGE_MAX, CONNECTIONS_MAX, CONNECTIONS_WANTED, SHUFFLE_PERIOD, VIEW_MAX};

use crate::{after, seconds};

/// `count` founders that hardly train, each told the address of the one that `bootstrap` names.
fn idle(count: usize, bootstrap: impl Fn(HostIndex) -> HostIndex) -> Scenario {
    let mut scenario = Scenario::calm(0);
    scenario.parameters = 10;
    let plan = |host: HostIndex| NodePlan {
        step_time: seconds(100_000),
        ..NodePlan::founder((host > 0).then(|| bootstrap(host)).into_iter().collect())
    };
    scenario.nodes = (0..count).map(plan).collect();
    scenario
}

/// Hosts that a host is connected to.
fn connected(swarm: &Swarm, host: HostIndex) -> Vec<HostIndex> {
    let status = swarm.status(host).expect("it runs");
    status.connected.into_iter().filter_map(|peer| swarm.host_of(peer)).collect()
}

/// Hosts that a host knows.
fn known(swarm: &Swarm, host: HostIndex) -> Vec<HostIndex> {
    let status = swarm.status(host).expect("it runs");
    status.known.into_iter().filter_map(|known| swarm.host_of(known.peer)).collect()
}

/// Hosts that can be reached from host `from` over connections.
fn component(swarm: &Swarm, from: HostIndex) -> Vec<HostIndex> {
    let mut reached = vec![from];
    let mut next = 0;
    while let Some(host) = reached.get(next).copied() {
        next += 1;
        let fresh: Vec<HostIndex> = connected(swarm, host).into_iter().filter(|one| !reached.contains(one)).collect();
        reached.extend(fresh);
    }
    reached
}

#[test]
fn two_hundred_nodes_with_one_founder_become_a_random_graph_and_forget_their_dead() {
    let crashed_at = seconds(1200);
    let mut scenario = idle(200, |_| 0);
    // The founder and every second of the others die unannounced.
    for host in (0..200).step_by(2) {
        scenario = scenario.at(crashed_at, Incident::Crash(host));
    }
    let mut swarm = after(crashed_at - seconds(1), scenario, 1);
    let degrees: Vec<usize> = (0..200).map(|host| connected(&swarm, host).len()).collect();
    assert!(degrees.iter().all(|degree| (CONNECTIONS_WANTED - 1..=24).contains(degree)), "{degrees:?}");
    assert!(degrees[0] <= 24, "the founder is nothing special any more: {}", degrees[0]);
    let mut in_degrees = vec![0usize; 200];
    (0..200).flat_map(|host| known(&swarm, host)).for_each(|host| in_degrees[host] += 1);
    let mean = in_degrees.iter().sum::<usize>() / 200;
    // A view that is a uniform sample of 75 in 200 is within 75 ± 28 in 4 standard deviations.
    assert!((65..85).contains(&mean), "{mean}");
    let unusual = in_degrees.iter().filter(|degree| **degree < mean / 3 || **degree > mean * 2).count();
    assert!(unusual <= 2, "{unusual} nodes are known by too few or too many: {in_degrees:?}");

    swarm.run_until(crashed_at + seconds(60));
    let survivors: Vec<HostIndex> = (1..200).step_by(2).collect();
    assert_eq!(component(&swarm, 1).len(), 100, "a minute later the rest hangs together");
    // Nobody can have heard of a dead one later than at its death; views are tidied at each shuffle.
    swarm.run_until(crashed_at + AGE_MAX + 2 * SHUFFLE_PERIOD);
    for host in &survivors {
        let dead = known(&swarm, *host).into_iter().filter(|known| known % 2 == 0).count();
        assert_eq!(dead, 0, "host {host} still knows {dead} dead ones");
        assert!((CONNECTIONS_WANTED - 1..=24).contains(&connected(&swarm, *host).len()));
    }
    let peaks = swarm.record().peaks;
    assert!(peaks.connected <= CONNECTIONS_MAX && peaks.known <= VIEW_MAX, "{peaks:?}");
}

#[test]
fn well_connected_halves_find_each_other_after_two_hours() {
    let (split_at, healed_at) = (seconds(600), seconds(600 + 7200));
    for seed in 0..3 {
        // In a chain only host 12 has an address of the other half.
        let scenario =
            idle(24, |host| host - 1).at(split_at, Incident::Split((0..12).collect())).at(healed_at, Incident::Heal);
        let mut swarm = after(healed_at, scenario, seed);
        for host in 0..24 {
            let known = known(&swarm, host);
            assert!(known.iter().all(|known| (*known < 12) == (host < 12)), "host {host} knows {known:?}");
            assert!(connected(&swarm, host).len() >= CONNECTIONS_WANTED - 2, "well connected");
        }
        swarm.run_until(healed_at + seconds(120));
        assert_eq!(component(&swarm, 0).len(), 24, "seed {seed}: one swarm again after two minutes");
        swarm.run_until(healed_at + seconds(480));
        for host in 0..24 {
            let of_others = known(&swarm, host).into_iter().filter(|known| (*known < 12) != (host < 12)).count();
            assert_eq!(of_others, 12, "seed {seed}: host {host} knows all of the other half after eight minutes");
        }
    }
}

#[test]
fn silence_and_losses_alone_tear_nobody_out() {
    let mut scenario = idle(24, |_| 0);
    scenario.network = NetworkSpec { breakage: 0.0, ..NetworkSpec::hostile() };
    let mut swarm = Swarm::new(scenario, 1);
    for minute in 5..30 {
        swarm.run_until(seconds(60 * minute));
        for host in 0..24 {
            let connected = connected(&swarm, host).len();
            assert!(connected >= CONNECTIONS_WANTED / 2, "host {host} has {connected} in minute {minute}");
        }
    }
}
