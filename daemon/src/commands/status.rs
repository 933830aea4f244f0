//! `murmur status`: asks a running daemon.

use std::time::Duration;

use super::client::Client;
use crate::cli::StatusOptions;
use crate::console::figures::{count, counted, duration, examples, megabits, percent, time_left};
use crate::console::{Console, human_bytes, labelled, print_fitted, print_line, summary_line};
use crate::observe::report::NodeReport;

pub(super) fn run(options: &StatusOptions) -> anyhow::Result<()> {
    let client = Client::find(options.address.as_deref(), options.run.as_deref())?;
    let report: NodeReport = client.get("status")?;
    if options.format == Console::Json {
        print_line(&serde_json::to_string(&report)?);
        return Ok(());
    }
    print_row(&format!("peer         {}", labelled(&report.peer, report.name.as_deref())));
    let run = Some(&report.run_name).filter(|name| !name.is_empty());
    let run = run.map_or(report.run.clone(), |name| format!("{name} · {}", report.run));
    print_row(&format!("run          {run} · {} parameters", count(report.parameters as u64)));
    // Those of an older daemon are not known.
    for (label, value) in [("device", &report.device), ("data", &report.data_directory)] {
        if !value.is_empty() {
            print_row(&format!("{label:<12} {value}"));
        }
    }
    print_row(&format!("dashboard    http://{}/", client.address));
    let doing = Some(&report.doing).filter(|doing| **doing != report.phase);
    let doing = doing.map_or(String::new(), |doing| format!(" · {doing}"));
    let up = duration(Duration::try_from_secs_f64(report.seconds).unwrap_or_default());
    print_row(&format!("phase        {}{doing} · up for {up}", report.phase));
    print_row(&format!("progress     {}", progress(&report)));
    if report.checkpoint_failed {
        print_row("checkpoint   the last one could not be written (`murmur logs` says why)");
    }
    print_row(&format!("reachable    {}", report.reachability.text));
    if let Some(hint) = &report.reachability.hint {
        print_row(&format!("             hint: {hint}"));
    }
    print_row(&format!("training     {}", summary_line(&report)));
    for member in report.members.iter().filter(|member| member.is_connected) {
        let name = labelled(&member.peer, member.name.as_deref());
        let speed = match member.tokens_per_second as u64 {
            0 => String::new(),
            speed => format!(" · says {} {} a second", count(speed), examples(&report.prediction)),
        };
        print_row(&format!("member       {name}{speed} · heard {} s ago", member.age_seconds));
    }
    print_row(&format!(
        "exchanges    {} completed · {} broken off · {} seen",
        count(report.exchanges_completed),
        count(report.exchanges_failed),
        counted(report.misbehaviours, "misbehaviour")
    ));
    if let Some(synchronous) = &report.synchronous {
        print_row(&format!("synchronous  {}", synchronous.summary()));
        print_row(&format!(
            "             {} begun anew · {} copied · {} with other bits · given {:.1} s each",
            counted(synchronous.dropped, "all-reduce"),
            counted(synchronous.copied, "replica"),
            synchronous.differed,
            synchronous.deadline_seconds
        ));
    }
    if let Some(team) = &report.team {
        print_row(&format!("team         {}", team.summary()));
        print_row(&format!(
            "             {} stepped · {} begun anew · {} sent to helpers · {} received",
            counted(team.batches, "batch"),
            team.batches_dropped,
            human_bytes(team.bytes_sent),
            human_bytes(team.bytes_received)
        ));
    }
    if let Some(privacy) = &report.privacy {
        print_row(&format!("privacy      {privacy}"));
    }
    if let Some(reason) = &report.resting {
        print_row(&format!("resting      {reason}"));
    }
    for banned in &report.banned {
        let minutes = (banned.seconds_left / 60.0).ceil();
        print_row(&format!("banned       {} for {minutes:.0} min more: it {}", banned.peer, banned.reason));
    }
    for distrusted in &report.distrusted {
        let share = 100.0 * distrusted.trust;
        let text =
            format!("{} may change {share:.0} % of the usual: its model lay far off again and again", distrusted.peer);
        print_row(&format!("distrusted   {text}"));
    }
    print_row(&format!(
        "traffic      {} sent · {} received",
        human_bytes(report.bytes_sent),
        human_bytes(report.bytes_received)
    ));
    print_row(&format!(
        "boundaries   {:.1} % of training between steps · longest gap {:.0} ms · median step {:.1} ms",
        100.0 * report.boundary_share(),
        1e3 * report.times.longest_gap_seconds,
        1e3 * report.times.median_step_seconds
    ));
    if let Some(rate) = report.uplink_bytes_per_second {
        // Where all average at once there are none.
        let exchanges = match report.interval_steps {
            0.0 => String::new(),
            steps => format!(" · an exchange every {}", counted(steps.round() as u64, "own step")),
        };
        print_row(&format!("uplink       {} as large transfers show it{exchanges}", megabits(8e-6 * rate)));
    }
    if let Some(data) = &report.data {
        print_row(&format!(
            "shards       {} of {} assigned held · {} held of {} in all · {} within reach · {} fetched · {} served",
            data.shards_assigned_held,
            data.shards_assigned,
            data.shards_held,
            data.shards,
            data.shards_reachable,
            human_bytes(data.bytes_fetched),
            human_bytes(data.bytes_served)
        ));
    }
    Ok(())
}

/// A line whose text begins behind its label.
fn print_row(line: &str) {
    print_fitted(line, 13);
}

/// How far the run is, and what the swarm does together.
fn progress(report: &NodeReport) -> String {
    let swarm = match report.swarm_tokens_per_second as u64 {
        0 => String::new(),
        speed => format!(" · swarm {} {} a second, as members tell", count(speed), examples(&report.prediction)),
    };
    let Some(share) = report.outlook.share else { return format!("no end set{swarm}") };
    let end = report.outlook.nearer(report.steps, report.progress);
    let total = match (end.own, end.swarm) {
        (Some(own), _) => format!(" of {}", counted(own, "own step")),
        (None, Some(swarm)) => format!(" of {}", counted(swarm, "swarm step")),
        (None, None) => String::new(),
    };
    let left = time_left(report.outlook.seconds_left);
    let left = if left.is_empty() { left } else { format!(" · {left}") };
    format!("{}{total}{left}{swarm}", percent(share))
}
