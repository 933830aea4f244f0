//! The page: one HTML file without scripts that needs nothing else; light and dark by what the reader prefers.

use std::fmt::Write;

use super::{Cost, Figures, Real, Row, Words, conditions, explanation, mean, rate, seconds, timeline, when};
use crate::compare::setting::STRAGGLER;
use crate::compare::world::STEPS_SHOWN;
use crate::compare::{Fault, Method, Outcome, Point, Results};
use crate::report::svg::{Chart, Curve, CurvePoint, escaped};
use crate::report::{bytes, count, counted, html};

/// What the timelines add to the page's style.
const STYLE: &str = "\
:root { --work: #0072b2; --send: #d55e00; --wait: #e4e8ec; }
@media screen and (prefers-color-scheme: dark) { :root { --work: #56b4e9; --send: #ff9a5c; --wait: #262c34; } }
.work { fill: var(--work); } .send { fill: var(--send); } .wait { fill: var(--wait); }
";

/// Title of a chart, label of its horizontal axis, and what lies on it.
type Axis = (&'static str, &'static str, fn(&Point) -> f64);

/// The whole page. `real` is what real daemons came to, where they ran; `command` is what was typed.
pub fn page(results: &Results, figures: &Figures, real: Option<&Real>, command: &str) -> String {
    let mut text = html::begin("Ways to train together, side by side", STYLE);
    let _ = writeln!(text, "<p class=\"verdict\">{}</p>", escaped(&figures.verdict(results)));
    let _ = writeln!(
        text,
        "<p class=\"soft\">{} was simulated, on a virtual clock: {}. See <a href=\"#how\">what was simulated</a>.</p>",
        if real.is_none() { "All of this" } else { "All but <a href=\"#real\">real daemons</a>" },
        escaped(&shortly(results))
    );
    curves(&mut text, results, figures);
    table(&mut text, figures);
    timelines(&mut text, results, figures);
    faults(&mut text, results, figures);
    if let Some(real) = real {
        real_daemons(&mut text, results, real);
    }
    methods(&mut text, results, figures);
    honesty(&mut text, results, command);
    all_conditions(&mut text, results);
    text + html::END
}

/// The most important conditions, in a phrase.
fn shortly(results: &Results) -> String {
    let base = &results.plan.base;
    let parameters = murmur_training::parameter_count(&base.trainer.model.clone().into());
    let whole = 4.0 * parameters as f64;
    let per_step = whole / base.links.up_bytes_per_second / base.step_time.as_secs_f64();
    format!(
        "{}, {} each of {}, a model of {} parameters ({} at full precision, which one uplink carries \
         in {per_step:.2} steps), {} links with {} up, {} down and {:.1} ms",
        counted(base.nodes as u64, "node"),
        counted(base.steps, "step"),
        seconds(base.step_time.as_secs_f64()),
        count(parameters as f64),
        bytes(whole),
        base.links.name,
        rate(base.links.up_bytes_per_second),
        rate(base.links.down_bytes_per_second),
        1000.0 * base.links.latency.median.as_secs_f64(),
    )
}

/// The mean over seeds, point by point, and the range of the loss.
fn curve(results: &Results, method: &Method, x: fn(&Point) -> f64) -> Curve {
    let runs = results.of(method);
    let count = runs.iter().map(|run| run.points.len()).min().unwrap_or(0);
    let point = |index: usize| {
        let of = |value: fn(&Point) -> f64| runs.iter().map(move |run| value(&run.points[index]));
        let losses = || of(|point| point.loss);
        CurvePoint {
            x: mean(runs.iter().map(|run| x(&run.points[index]))),
            y: mean(losses()),
            smallest: losses().fold(f64::INFINITY, f64::min),
            largest: losses().fold(f64::NEG_INFINITY, f64::max),
        }
    };
    Curve { label: method.name.to_owned(), points: (0..count).map(point).collect() }
}

fn curves(text: &mut String, results: &Results, figures: &Figures) {
    text.push_str(
        "<h2>Loss against time, tokens and bytes</h2>\n<p>Bands show the range over seeds. Time is what one waits for; \
                   tokens are what a method makes of its data; the busiest node is where a line is full first.</p>\n",
    );
    let axes: [Axis; 3] = [
        ("Loss against time", "simulated seconds", |point| point.seconds),
        ("Loss against tokens", "bytes of text, all nodes together", |point| point.tokens as f64),
        ("Loss against bytes of the busiest node", "bytes sent by the busiest node", |point| {
            point.busiest_bytes as f64
        }),
    ];
    for (title, x_label, x) in axes {
        let curves = figures.rows.iter().map(|row| curve(results, &row.method, x)).collect();
        let (title, x_label, y_label) = (title.to_owned(), x_label.to_owned(), "loss, nats per byte".to_owned());
        let chart = Chart { title, x_label, y_label, curves, ..Chart::default() };
        text.push_str(&html::drawing(&chart.to_svg()));
    }
}

fn table(text: &mut String, figures: &Figures) {
    let fewest = format!("loss after {} tokens", count(figures.fewest_tokens.unwrap_or_default() as f64));
    // Where all took the same, it is the loss at the end.
    let has_fewest = figures.fewest_tokens.is_some() && figures.do_tokens_differ();
    let first = figures.rows.iter().find_map(|row| row.target);
    let mut head = vec![
        "method",
        "time",
        "times the first",
        "busiest node",
        "times the first",
        "loss at the end",
        "seeds",
        "computing",
        "waiting",
        "learning rate",
        "tokens",
    ];
    head.extend(has_fewest.then_some(&*fewest));
    let cells = |row: &Row| {
        let ratio = |of: fn(&Point) -> f64| match (row.target, first) {
            (Some(own), Some(first)) if of(&first) > 0.0 => format!("{:.2}", of(&own) / of(&first)),
            _ => "-".to_owned(),
        };
        let at_target = |words: fn(Point) -> String| row.target.map_or("never".to_owned(), words);
        let mut cells = vec![
            row.method.name.to_owned(),
            at_target(|point| seconds(point.seconds)),
            ratio(|point| point.seconds),
            at_target(|point| bytes(point.busiest_bytes as f64)),
            ratio(|point| point.busiest_bytes as f64),
            format!("{:.3}{}", row.loss.0, if row.is_complete { "" } else { " (unfinished)" }),
            format!("{:.3} to {:.3}", row.loss.1, row.loss.2),
            format!("{:.0} %", 100.0 * row.shares.0),
            format!("{:.0} %", 100.0 * row.shares.1),
            format!("{}{}", row.learning_rate, if row.is_at_edge { " (edge of the list)" } else { "" }),
            count(row.tokens),
        ];
        // A method that took fewer has no such loss.
        let at_fewest = || row.loss_at_fewest_tokens.map_or("-".to_owned(), |loss| format!("{loss:.3}"));
        cells.extend(has_fewest.then(at_fewest));
        cells
    };
    let _ = writeln!(
        text,
        "<h2>Time and bytes to a loss of {:.3}</h2>\n<p>This loss is {}.</p>",
        figures.target,
        escaped(&figures.target_source)
    );
    text.push_str(&html::table(&head, &figures.rows.iter().map(cells).collect::<Vec<_>>()));
}

fn timelines(text: &mut String, results: &Results, figures: &Figures) {
    text.push_str(
        "<h2>What each node does</h2>\n<p>The first part of a run.<span class=\"key\" style=\"background:var(--work)\"></span>computing\
         <span class=\"key\" style=\"background:var(--wait)\"></span>waiting\
         <span class=\"key\" style=\"background:var(--send)\"></span>its uplink is sending</p>\n",
    );
    let length = STEPS_SHOWN * results.plan.base.step_time.as_secs_f64();
    for row in &figures.rows {
        if let Some(run) = results.of(&row.method).first() {
            let _ = writeln!(text, "<h3>{}</h3>", row.method.name);
            text.push_str(&html::drawing(&timeline::svg(run, 0.0, length)));
        }
    }
}

fn faults(text: &mut String, results: &Results, figures: &Figures) {
    let faults = &results.plan.faults;
    if faults.is_empty() {
        return;
    }
    text.push_str("<h2>What faults cost</h2>\n<p>");
    for fault in faults {
        let _ = write!(text, "{}: {}. ", fault.name(), fault.title());
    }
    let _ = writeln!(
        text,
        "{}</p>\n<p>Until the end of the run: more time than without the fault. In brackets: how much higher or lower the loss ended. \
         Ended before it: the run was over before the fault came. Dropped: how much longer operations had taken that were begun anew.</p>",
        when(&results.plan)
    );
    let words = |cost: &Cost| match cost.stood_still {
        0.0 => cost.until_the_end(),
        dropped => format!("{}, {} dropped", cost.until_the_end(), seconds(dropped)),
    };
    text.push_str(&figures.fault_table(faults, words).to_html());
    let _ = writeln!(
        text,
        "<p>To a loss of {:.3}: more time than without the fault. Before it: this loss was reached before the fault came.</p>",
        figures.target
    );
    text.push_str(&figures.fault_table(faults, Cost::to_target).to_html());
    let base = &results.plan.base;
    let begin = base.fault_at().as_secs_f64();
    let length = STEPS_SHOWN * base.step_time.as_secs_f64();
    for fault in faults.iter().filter(|fault| matches!(fault, Fault::Kill | Fault::KillFirst)).take(1) {
        for row in &figures.rows {
            if let Some(run) = results.with(&row.method, *fault).first() {
                let _ = writeln!(text, "<h3>{} when {}</h3>", row.method.name, fault.title());
                let (from, to) = ((begin - length / 4.0).max(0.0), begin + 0.75 * length);
                text.push_str(&html::drawing(&timeline::svg(run, from, to)));
            }
        }
    }
}

fn real_daemons(text: &mut String, results: &Results, real: &Real) {
    let _ = writeln!(
        text,
        "<h2 id=\"real\">Real daemons</h2>\n<p>{} daemons as processes of one machine, with the learning rates, steps, speeds and first \
         seed of the simulated nodes. {} Time begins with the first step of any of them.</p>",
        results.plan.base.nodes,
        escaped(&real.conditions(results))
    );
    if real.measured.is_empty() {
        return;
    }
    text.push_str(&real.table(results).to_html());
    let until_the_end = "Until the end of the run: more time because of a fault, measured and simulated. In brackets: how much higher or \
                         lower the loss ended."
        .to_owned();
    let to_target = format!("More time to a loss of {:.3} because of a fault, measured and simulated.", real.target);
    let words: [(String, Words); 2] = [(until_the_end, Cost::until_the_end), (to_target, Cost::to_target)];
    for (title, words) in words {
        if let Some(table) = real.fault_table(results, words) {
            let _ = writeln!(text, "<p>{title}</p>\n{}", table.to_html());
        }
    }
}

fn methods(text: &mut String, results: &Results, figures: &Figures) {
    text.push_str("<h2>How each method works</h2>\n");
    for row in &figures.rows {
        let method = row.method;
        let _ = writeln!(
            text,
            "<h3>{}: {}</h3>\n<p>{}",
            method.name,
            escaped(method.title),
            escaped(&method.sentences.join(" "))
        );
        let _ = writeln!(text, "{}", escaped(&explanation(results, row)));
        let source = if method.source == "-" { String::new() } else { format!("Source: {}.", escaped(method.source)) };
        let _ = writeln!(text, "<span class=\"soft\">{source}</span></p>");
    }
}

fn honesty(text: &mut String, results: &Results, command: &str) {
    let plan = &results.plan;
    let rates: Vec<String> = plan.learning_rates.iter().map(f64::to_string).collect();
    let _ = writeln!(
        text,
        "<h2 id=\"how\">What was simulated, and what was not</h2>\n<ul>\n<li>Real: the models, their gradients and \
         optimizers, and every vector that is averaged. They were computed by the engine that trains in the daemon.</li>\n\
         <li>Real: the decisions of each method. Gossip is the daemon's own; the others are state machines that know neither \
         a clock nor a network.</li>\n<li>Simulated: time and links. {}. A node's line carries one transfer after the other \
         each way; lost transfers are sent again.</li>\n<li>Simulated: computing takes a set time a step, {} on a node of speed \
         1. Sums, encoding and evaluation take no time.</li>\n<li>The learning rate was chosen for each method from the same \
         list ({}) by the loss at the end of a run with the first seed, which is told with the others.</li>\n<li>All methods \
         begin with the same model and read the same data in the same order on each node. A node alone ends after the steps that were \
         asked for. The others, but gossip and auto, end when the mean of the living nodes' steps is that number; these two end, as \
         daemons do, by the progress that nodes average along with their models, which may be sooner where speeds differ. Learning \
         rates follow what ends the run. So the losses of which it is said that they are for the same number \
         of tokens are read from the curves after the fewest that any took, where the learning rate of a method that took more \
         had not yet come to its end.</li>\n<li>{} from {} on; faults were run with the first.</li>\n<li>A straggler is {STRAGGLER} \
         times slower. DiLoCo and NoLoCo exchange every {} steps here; their papers take more. Their loss is that of the slow \
         weights, which move once a round.</li>\n<li>Vectors travel as 32-bit floats, but for the 16 and 8 bits of the rings that are \
         named after them, and for gossip: one bit a parameter in an exchange, a byte in the first one of two partners and in each of \
         the four after the last step.</li>\n<li>Computing and waiting are shares of the time from a node's first step to the end of \
         its training. Joining and the last exchanges of gossip are no part of it.</li>\n</ul>\n",
        escaped(&shortly(results)),
        seconds(plan.base.step_time.as_secs_f64()),
        rates.join(", "),
        counted(plan.seeds, "seed"),
        plan.base.seed,
        crate::compare::method::INTERVAL,
    );
    let violations = results.violations();
    let words = match violations.len() {
        0 => "All laws held in all runs: each result once, one model after a synchronous round, staleness within its bound, no \
              wait beyond its deadline."
            .to_owned(),
        count => format!("{count} times a law did not hold, the first: {}", violations[0]),
    };
    let _ = writeln!(text, "<p>{}</p>\n<p>The command: <code>{}</code></p>", escaped(&words), escaped(command));
    let unfinished: Vec<&Outcome> = results.runs.iter().filter(|run| !run.is_complete).collect();
    for run in unfinished {
        let _ = writeln!(
            text,
            "<p class=\"soft\">{} did not do all its steps with fault {}: {} after {}.</p>",
            run.method.name,
            run.fault.name(),
            if run.stands_still { "nobody went on" } else { "time was over" },
            seconds(run.nodes.iter().map(|node| node.lived).fold(0.0, f64::max))
        );
    }
}

fn all_conditions(text: &mut String, results: &Results) {
    text.push_str("<h2 id=\"conditions\">Conditions</h2>\n<ul>\n");
    for (name, value) in conditions(results) {
        let _ = writeln!(text, "<li>{name}: {}</li>", escaped(&value));
    }
    text.push_str("</ul>\n");
}
