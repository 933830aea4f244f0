//! Curves over time, tokens and bytes.

use murmur_sim::report::html;
use murmur_sim::report::svg::{Chart, Curve, CurvePoint};

use super::{heading, paragraph};
use crate::history::verdict::unit;
use crate::history::{History, Names, NodeHistory, Place, Point};

/// Nodes that have a curve of their own; of more, all together are drawn as their mean in a band.
const CURVES_MAX: usize = 8;

/// Points of a curve, at most.
const POINTS_MAX: usize = 400;

/// A value at a place.
type Value = (Place, f64);

/// Where a place lies on a horizontal axis.
type OnAxis = Box<dyn Fn(&Place) -> f64>;

/// A unit of time that suits a length in seconds, and its seconds.
fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        ..300.0 => ("seconds", 1.0),
        300.0..10_800.0 => ("minutes", 60.0),
        10_800.0..259_200.0 => ("hours", 3600.0),
        _ => ("days", 86_400.0),
    }
}

/// Loss against time, tokens and bytes.
pub(super) fn losses(text: &mut String, history: &History, names: &Names) {
    heading(text, "How the loss went");
    let evaluated = |node: &NodeHistory| node.evaluations.iter().map(|found| (found.place, found.loss)).collect();
    let trained = |node: &NodeHistory| known(node, |point| point.loss);
    let has_evaluations = history.nodes.values().any(|node| node.evaluations.iter().nth(1).is_some());
    let values: fn(&NodeHistory) -> Vec<Value> = if has_evaluations { evaluated } else { trained };
    if history.nodes.values().all(|node| values(node).is_empty()) {
        paragraph(
            text,
            "",
            "No loss is known: no step was done, or the journals' beginnings are gone and nothing came after.",
        );
        return;
    }
    let what = if has_evaluations { "held-out data, which no node trains on" } else { "what is trained on" };
    let prediction = unit(history);
    let (begin, end) = history.times();
    let (unit, scale) = time_unit(end - begin);
    let time_label = format!("{unit} since the beginning");
    paragraph(
        text,
        "",
        &format!(
            "The loss says how badly the model predicts {what}: {prediction}, less is better. Against time it is what one waits \
             for, against tokens what is made of the data, against bytes what the network is used for. Tokens and bytes are \
             those of the node itself."
        ),
    );
    if history.nodes.values().any(|node| node.sessions.len() > 1) {
        paragraph(text, "", "The time goes on where a node is off; its curve has a gap then.");
    }
    let is_counted = history.nodes.values().all(|node| node.are_tokens_counted);
    let thing = match prediction {
        _ if prediction.ends_with("image") => "images",
        _ if prediction.ends_with("row") => "rows",
        _ => "tokens (bytes of text where the model reads bytes)",
    };
    let tokens = if is_counted {
        format!("{thing} trained on")
    } else {
        format!("{thing} trained on, estimated from the speed")
    };
    let axes: [(&str, String, OnAxis); 3] = [
        ("Loss against time", time_label.clone(), Box::new(move |place| (place.time - begin) / scale)),
        ("Loss against tokens", tokens, Box::new(|place| place.tokens)),
        ("Loss against bytes", "bytes sent".to_owned(), Box::new(|place| place.sent as f64)),
    ];
    for (title, x_label, x) in axes {
        let curves = curves(history, names, values, &*x);
        let chart = Chart { title: title.to_owned(), x_label, y_label: prediction.clone(), curves, ..Chart::default() };
        text.push_str(&html::drawing(&chart.to_svg()));
    }
    if has_evaluations {
        let title = "Training loss against time".to_owned();
        let curves = curves(history, names, trained, &move |place| (place.time - begin) / scale);
        let chart = Chart { title, x_label: time_label, y_label: prediction, curves, ..Chart::default() };
        text.push_str(&html::drawing(&chart.to_svg()));
    }
}

/// How well held-out images or rows were told, over time; nothing of texts.
pub(super) fn scores(text: &mut String, history: &History, names: &Names) {
    let values = |node: &NodeHistory| -> Vec<Value> {
        node.evaluations.iter().filter_map(|found| Some((found.place, found.score?))).collect()
    };
    if history.nodes.values().all(|node| values(node).is_empty()) {
        return;
    }
    heading(text, "How well is it told?");
    let is_number =
        history.nodes.values().any(|node| node.sample.as_ref().is_some_and(|sample| sample.r_squared.is_some()));
    let (title, words) = match is_number {
        true => (
            "R² of held-out rows",
            "R² is the share of the target's variance that is predicted: 1 is all of it, 0 as good as the mean.",
        ),
        false => ("Accuracy on held-out examples", "Accuracy is the share of examples whose class is told rightly."),
    };
    paragraph(text, "", &format!("Each node holds out some of its own data. {words}"));
    let chart = Chart { title: title.to_owned(), y_label: title.to_owned(), ..Chart::default() };
    over_time(text, history, names, values, chart);
    let row = |(id, node): (&String, &NodeHistory)| {
        let sample = node.sample.clone().unwrap_or_default();
        let shown = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        let of_last = [sample.accuracy, sample.roc_auc, sample.rmse, sample.r_squared].map(shown);
        [vec![names.label(id)], of_last.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = history.nodes.iter().map(row).collect();
    text.push_str(&html::table(&["node, at its last evaluation", "accuracy", "ROC AUC", "RMSE", "R²"], &rows));
}

/// The ratio of disagreement to local progress.
pub(super) fn agreement(text: &mut String, history: &History, names: &Names) {
    heading(text, "Did the models agree?");
    let values = |node: &NodeHistory| known(node, |point| point.ratio);
    let no_exchange = history.nodes.values().all(|node| values(node).is_empty());
    if history.nodes.values().any(|node| node.is_synchronous) {
        let when = if no_exchange { "The run was synchronous" } else { "A part of the run was synchronous" };
        paragraph(text, "", &format!("{when}: after each all-reduce all members hold the same model, bit for bit."));
    } else if no_exchange {
        paragraph(text, "", "It is not known: no exchange between two nodes was completed.");
    }
    if no_exchange {
        return;
    }
    let band = history.nodes.values().next().map(|node| node.run.ratio_band).unwrap_or_default();
    let meaning = format!(
        "Each node trains by itself and averages its model with another's now and then. Drawn is how far apart the two models \
         were, divided by how far a node's own training moves its model between two exchanges. From {} to {} is healthy: below, \
         nodes talk more than they need to; above {}, they drift apart and averaging them helps little. \
         Two partners may judge the same minute differently: each divides by its own training, and draws the mean of its own last \
         exchanges.",
        band.low, band.high, band.drifting
    );
    paragraph(text, "", &meaning);
    let healthy = Some((band.low, band.high, format!("healthy: {} to {}", band.low, band.high)));
    let (title, y_label) = ("Disagreement ratio".to_owned(), "ratio".to_owned());
    over_time(text, history, names, values, Chart { title, y_label, healthy, ..Chart::default() });
}

/// Tokens a second.
pub(super) fn speed(text: &mut String, history: &History, names: &Names) {
    heading(text, "Speed and resources");
    let values = |node: &NodeHistory| known(node, |point| Some(point.tokens_per_second).filter(|speed| *speed > 0.0));
    if history.nodes.values().all(|node| values(node).is_empty()) {
        paragraph(text, "", "No speed is known: no step was done.");
        return;
    }
    let (title, y_label) = ("Speed of training".to_owned(), "tokens or images a second".to_owned());
    over_time(text, history, names, values, Chart { title, y_label, ..Chart::default() });
}

/// Draws values against the time since the beginning.
fn over_time(
    text: &mut String,
    history: &History,
    names: &Names,
    values: impl Fn(&NodeHistory) -> Vec<Value>,
    chart: Chart,
) {
    let (begin, end) = history.times();
    let (unit, scale) = time_unit(end - begin);
    let curves = curves(history, names, values, &move |place| (place.time - begin) / scale);
    let chart = Chart { x_label: format!("{unit} since the beginning"), curves, ..chart };
    text.push_str(&html::drawing(&chart.to_svg()));
}

fn known(node: &NodeHistory, value: impl Fn(&Point) -> Option<f64>) -> Vec<Value> {
    node.points.iter().filter_map(|point| Some((point.place, value(point)?))).collect()
}

/// A curve of each node, or of many their mean in a band.
fn curves(
    history: &History,
    names: &Names,
    values: impl Fn(&NodeHistory) -> Vec<Value>,
    x: &dyn Fn(&Place) -> f64,
) -> Vec<Curve> {
    let all: Vec<(&String, Vec<Value>)> =
        history.nodes.iter().map(|(id, node)| (id, values(node))).filter(|(_, values)| !values.is_empty()).collect();
    if all.len() <= CURVES_MAX {
        return all
            .into_iter()
            .map(|(id, values)| Curve { label: names.label(id), points: line(&values, x) })
            .collect();
    }
    let label = format!("mean of {} nodes, and their range", all.len());
    vec![Curve { label, points: mean_line(&all.into_iter().map(|(_, values)| values).collect::<Vec<_>>(), x) }]
}

/// With a gap where a piece ends.
fn line(values: &[Value], x: &dyn Fn(&Place) -> f64) -> Vec<CurvePoint> {
    let stride = values.len().div_ceil(POINTS_MAX).max(1);
    let mut points: Vec<CurvePoint> = Vec::new();
    let mut piece = None;
    for (index, (place, value)) in values.iter().enumerate() {
        let begins = piece.replace(place.piece).is_some_and(|before| before != place.piece);
        if begins {
            points.push(CurvePoint::new(x(place), f64::NAN));
        }
        if begins || index % stride == 0 || index + 1 == values.len() {
            points.push(CurvePoint::new(x(place), *value));
        }
    }
    points
}

/// The mean over nodes in each of some hundred equal parts of the axis, and the range in it.
fn mean_line(nodes: &[Vec<Value>], x: &dyn Fn(&Place) -> f64) -> Vec<CurvePoint> {
    const PARTS: usize = 150;
    let ends = nodes.iter().flatten().map(|(place, _)| x(place)).fold(0.0, f64::max);
    let part = |place: &Place| {
        let part = if ends > 0.0 { x(place) / ends * PARTS as f64 } else { 0.0 };
        (part as usize).min(PARTS)
    };
    // Of each part the values of each node: one that tells more often than others counts as one all the same.
    let mut parts: Vec<Vec<Vec<f64>>> = vec![Vec::new(); PARTS + 1];
    for node in nodes {
        for values in node.chunk_by(|(one, _), (other, _)| part(one) == part(other)) {
            parts[part(&values[0].0)].push(values.iter().map(|(_, value)| *value).collect());
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let point = |(part, nodes): (usize, Vec<Vec<f64>>)| {
        let mean = mean(&nodes.iter().map(|values| mean(values)).collect::<Vec<_>>());
        let all = nodes.iter().flatten();
        let (smallest, largest) = all.fold((mean, mean), |(low, high), value| (low.min(*value), high.max(*value)));
        CurvePoint { x: (part as f64 + 0.5) / PARTS as f64 * ends, y: mean, smallest, largest }
    };
    parts.into_iter().enumerate().filter(|(_, nodes)| !nodes.is_empty()).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_nodes_is_not_one_of_their_samples() {
        let value = |time: f64, value: f64| (Place { time, ..Place::default() }, value);
        let often: Vec<Value> = (0..9).map(|second| value(100.0 + f64::from(second) / 100.0, 1.0)).collect();
        let seldom = vec![value(100.0, 4.0)];
        let points = mean_line(&[often, seldom], &|place| place.time);
        let first = points.first().expect("a part");
        assert_eq!((first.y, first.smallest, first.largest), (2.5, 1.0, 4.0));
    }
}
