//! Line charts as SVG: axes with units, a legend, colours for light and for dark viewers.
//!
//! A few hundred lines of text a chart, so no library is needed; lines also differ in their dashes, for those who see
//! no colours.

use std::fmt::Write;

/// Outer size and the frame of the plotting area, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 66.0;
const BOTTOM: f64 = 52.0;

/// Above this ratio of the largest to the smallest value a linear axis hides the small ones.
const LOGARITHMIC_FROM_RATIO: f64 = 30.0;

/// Pixels that a letter of the legend takes, about.
const LETTER: f64 = 7.2;

/// Pixels between the middle of an axis of two scales and the tick next to it.
const TICKS_APART: f64 = 36.0;

/// Colours of Okabe and Ito for light grounds, lighter ones for dark grounds; and dashes.
const LINES: [(&str, &str, &str); 9] = [
    ("#0072b2", "#56b4e9", ""),
    ("#d55e00", "#ff9a5c", "7 4"),
    ("#009e73", "#3cd6a8", "2 3"),
    ("#a3487e", "#f0a8cc", "10 3 2 3"),
    ("#8a6d00", "#ffc24d", "4 2"),
    ("#444444", "#dddddd", "1 2"),
    ("#b3003c", "#ff7a9c", "12 4"),
    ("#5a3fc0", "#b9a5ff", "6 2 1 2"),
    ("#3f6b00", "#a8d94a", "3 6"),
];

const GRID: &str = "class=\"grid\" stroke=\"#d8dee4\"";
const FRAME: &str = "class=\"frame\" fill=\"none\" stroke=\"#6e7781\"";

/// A chart in the making.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// What is drawn.
    pub title: String,
    /// Of the horizontal axis, with its unit.
    pub x_label: String,
    /// Of the vertical axis, with its unit.
    pub y_label: String,
    /// At most nine look different.
    pub curves: Vec<Curve>,
    /// A moment that matters, and its name.
    pub mark: Option<(f64, &'static str)>,
    /// Stretches of the horizontal axis that are shaded, the first ones below the others.
    pub shades: Vec<Shade>,
    /// What lies beyond this value takes no more of the horizontal axis than what lies before it.
    pub half: Option<f64>,
    /// From and to, on the vertical axis: where values should be, and what that is called.
    pub healthy: Option<(f64, f64, String)>,
}

/// A shaded stretch.
#[derive(Clone, Debug)]
pub struct Shade {
    /// Where it begins on the horizontal axis.
    pub from: f64,
    /// And ends: at the same value it is a thin line.
    pub to: f64,
    /// Of the plotting area's height, from below: 0 to 1.
    pub height: f64,
    /// How much it hides: 0 to 1.
    pub opacity: f64,
    /// One of the nine of the curves.
    pub colour: usize,
    /// Shown where one points at it.
    pub name: String,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Curve {
    /// In the legend.
    pub label: String,
    /// From left to right. One whose value is no number is a gap in the line.
    pub points: Vec<CurvePoint>,
}

/// One of its points: the smallest and largest make a band around it.
#[derive(Clone, Copy, Debug)]
pub struct CurvePoint {
    /// On the horizontal axis.
    pub x: f64,
    /// On the vertical axis.
    pub y: f64,
    /// The band's lower end.
    pub smallest: f64,
    /// The band's upper end.
    pub largest: f64,
}

impl CurvePoint {
    /// A point without a band.
    pub fn new(x: f64, y: f64) -> CurvePoint {
        CurvePoint { x, y, smallest: y, largest: y }
    }
}

/// From values to pixels.
struct Axis {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    from: f64,
    to: f64,
    /// A value that lies in the middle of the axis, which changes its scale there.
    middle: Option<f64>,
}

impl Chart {
    /// The chart as one SVG element.
    pub fn to_svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Axis::linear(points().map(|point| point.x), LEFT, WIDTH - RIGHT).halved_at(self.half);
        let values = points().flat_map(|point| [point.smallest, point.y, point.largest]);
        let y = Axis::fitting(
            values.chain(self.healthy.iter().flat_map(|(low, high, _)| [*low, *high])),
            HEIGHT - BOTTOM,
            TOP,
        );
        let mut svg = String::new();
        self.open(&mut svg);
        self.draw_healthy(&mut svg, &y);
        self.draw_shades(&mut svg, &x);
        self.draw_axes(&mut svg, &x, &y);
        for (index, curve) in self.curves.iter().enumerate() {
            curve.draw(&mut svg, index % LINES.len(), &x, &y);
        }
        self.draw_legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    /// Light colours are attributes, so that a viewer without style sheets shows them; only dark ones need a style.
    fn open(&self, svg: &mut String) {
        let size = format!("viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\"");
        let font = "font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"#24292f\"";
        put(svg, &format!("<svg xmlns=\"http://www.w3.org/2000/svg\" {size} {font} role=\"img\">\n"));
        put(svg, &format!("<title>{}</title>\n<style>\n", escaped(&self.title)));
        put(
            svg,
            "@media screen and (prefers-color-scheme: dark) {\n.ground { fill: #0d1117; } text { fill: #e6edf3; }\n",
        );
        put(svg, ".grid { stroke: #30363d; } .frame { stroke: #8b949e; }\n");
        for (index, (_, dark, _)) in LINES.iter().enumerate() {
            put(svg, &format!(".c{index} {{ stroke: {dark}; }} .b{index} {{ fill: {dark}; }}\n"));
        }
        put(svg, "}\n</style>\n");
        put(svg, &format!("<rect class=\"ground\" fill=\"#ffffff\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"));
        let title = escaped(&self.title);
        put(svg, &format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"600\">{title}</text>\n"));
    }

    fn draw_healthy(&self, svg: &mut String, y: &Axis) {
        let Some((low, high, name)) = &self.healthy else { return };
        let (top, bottom, width) = (y.at(*high), y.at(*low), WIDTH - LEFT - RIGHT);
        let height = bottom - top;
        let band = format!("x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width}\" height=\"{height:.1}\"");
        put(svg, &format!("<rect class=\"b2\" fill=\"{}\" fill-opacity=\"0.18\" {band}/>\n", LINES[2].0));
        let (right, base) = (WIDTH - RIGHT - 6.0, top + 15.0);
        put(svg, &format!("<text x=\"{right}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\n", escaped(name)));
    }

    fn draw_shades(&self, svg: &mut String, x: &Axis) {
        for shade in self.shades.iter().filter(|shade| shade.from < x.high && shade.to >= x.low) {
            let (left, right) = (x.at(shade.from), x.at(shade.to));
            let (width, height) = ((right - left).max(1.5), (HEIGHT - TOP - BOTTOM) * shade.height);
            let place = format!("x=\"{left:.1}\" width=\"{width:.1}\" y=\"{:.1}\"", HEIGHT - BOTTOM - height);
            let colour = shade.colour % LINES.len();
            let fill =
                format!("class=\"b{colour}\" fill=\"{}\" fill-opacity=\"{:.3}\"", LINES[colour].0, shade.opacity);
            let name = escaped(&shade.name);
            put(svg, &format!("<rect {fill} {place} height=\"{height:.1}\"><title>{name}</title></rect>\n"));
        }
    }

    fn draw_axes(&self, svg: &mut String, x: &Axis, y: &Axis) {
        for tick in y.ticks() {
            let at = y.at(tick);
            put(svg, &format!("<path {GRID} d=\"M{LEFT} {at:.1}H{}\"/>\n", WIDTH - RIGHT));
            let (left, middle) = (LEFT - 8.0, at + 4.5);
            put(svg, &format!("<text x=\"{left}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\n", label(tick)));
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            put(svg, &format!("<path {GRID} d=\"M{at:.1} {TOP}V{}\"/>\n", HEIGHT - BOTTOM));
            let below = HEIGHT - BOTTOM + 18.0;
            put(svg, &format!("<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>\n", label(tick)));
        }
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let frame = format!("<rect {FRAME} x=\"{LEFT}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\"/>\n");
        put(svg, &frame);
        if let Some((moment, name)) = self.mark.filter(|(moment, _)| (x.low..=x.high).contains(moment)) {
            let (at, bottom, beside) = (x.at(moment), HEIGHT - BOTTOM, x.at(moment) + 5.0);
            put(svg, &format!("<path {FRAME} stroke-dasharray=\"3 3\" d=\"M{at:.1} {TOP}V{bottom}\"/>\n"));
            put(svg, &format!("<text x=\"{beside:.1}\" y=\"{}\">{name}</text>\n", TOP + 16.0));
        }
        let (centre, low) = (LEFT + width / 2.0, HEIGHT - 14.0);
        put(
            svg,
            &format!("<text x=\"{centre}\" y=\"{low}\" text-anchor=\"middle\">{}</text>\n", escaped(&self.x_label)),
        );
        let middle = TOP + height / 2.0;
        let turned = format!("transform=\"rotate(-90 16 {middle})\" text-anchor=\"middle\"");
        put(svg, &format!("<text x=\"16\" y=\"{middle}\" {turned}>{}</text>\n", escaped(&self.y_label)));
    }

    fn draw_legend(&self, svg: &mut String) {
        let width = |curve: &Curve| 46.0 + LETTER * curve.label.chars().count() as f64;
        let is_in_rows = self.curves.iter().map(width).sum::<f64>() > WIDTH - LEFT;
        let (mut left, mut middle) = (LEFT, if is_in_rows { 37.0 } else { 44.0 });
        for (index, curve) in self.curves.iter().enumerate() {
            if left > LEFT && left + width(curve) > WIDTH {
                (left, middle) = (LEFT, middle + 17.0);
            }
            let (colour, end) = (index % LINES.len(), left + 26.0);
            put(svg, &format!("<path {} d=\"M{left:.1} {middle}H{end:.1}\"/>\n", stroke(colour)));
            let (beside, base) = (end + 6.0, middle + 4.5);
            put(svg, &format!("<text x=\"{beside:.1}\" y=\"{base}\">{}</text>\n", escaped(&curve.label)));
            left += width(curve);
        }
    }
}

impl Curve {
    fn draw(&self, svg: &mut String, colour: usize, x: &Axis, y: &Axis) {
        for piece in self.points.split(|point| !y.can_show(point.y)).filter(|piece| !piece.is_empty()) {
            if piece.iter().any(|point| point.largest > point.smallest) {
                let corner = |point: &CurvePoint, value| format!("{:.1} {:.1}", x.at(point.x), y.at(value));
                let upper = piece.iter().map(|point| corner(point, point.largest));
                let lower = piece.iter().rev().map(|point| corner(point, point.smallest));
                let outline: Vec<String> = upper.chain(lower).collect();
                let fill = LINES[colour].0;
                let band = format!("class=\"b{colour}\" fill=\"{fill}\" fill-opacity=\"0.15\"");
                put(svg, &format!("<path {band} d=\"M{}Z\"/>\n", outline.join("L")));
            }
        }
        let mut way = String::new();
        for piece in self.points.split(|point| !y.can_show(point.y)).filter(|piece| !piece.is_empty()) {
            let corner = |point: &CurvePoint| format!("{:.1} {:.1}", x.at(point.x), y.at(point.y));
            let corners: Vec<String> = piece.iter().map(corner).collect();
            // A line of no length with round ends is a dot.
            let dot = if piece.len() == 1 { "h0" } else { "" };
            put(&mut way, &format!("M{}{dot}", corners.join("L")));
        }
        if !way.is_empty() {
            put(svg, &format!("<path {} stroke-linecap=\"round\" d=\"{way}\"/>\n", stroke(colour)));
        }
    }
}

impl Axis {
    fn linear(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = ends(values);
        let high = if high > low { high } else { low + 1.0 };
        Axis { low: low.min(0.0), high, is_logarithmic: false, from, to, middle: None }
    }

    /// With this value in the middle, where it would otherwise lie before it.
    fn halved_at(self, value: Option<f64>) -> Axis {
        let middle = value.filter(|value| *value > self.low && 2.0 * (value - self.low) < self.high - self.low);
        Axis { middle, ..self }
    }

    /// Logarithmic where that shows more.
    fn fitting(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Axis {
        let (low, high) = ends(values.clone());
        if low < 0.0 {
            let room = 0.05 * (high.max(0.0) - low);
            return Axis { low: low - room, high: high.max(0.0) + room, is_logarithmic: false, from, to, middle: None };
        }
        let (low, high) = ends(values.filter(|value| *value > 0.0));
        if low > 0.0 && high / low > LOGARITHMIC_FROM_RATIO {
            return Axis { low, high, is_logarithmic: true, from, to, middle: None };
        }
        // Some room above; from zero on, so that a small change looks small.
        let high = if high > 0.0 { high * 1.05 } else { 1.0 };
        Axis { low: 0.0, high, is_logarithmic: false, from, to, middle: None }
    }

    fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (!self.is_logarithmic || value > 0.0)
    }

    fn at(&self, value: f64) -> f64 {
        let share = if self.is_logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else if let Some(middle) = self.middle {
            let (before, beyond) = ((value - self.low) / (middle - self.low), (value - middle) / (self.high - middle));
            if value < middle { before / 2.0 } else { 0.5 + beyond / 2.0 }
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    /// Round values within the axis.
    fn ticks(&self) -> Vec<f64> {
        if let Some(middle) = self.middle {
            let part = |low, high| Axis { low, high, middle: None, ..*self }.ticks();
            let mut ticks = part(self.low, middle);
            // Where the scale changes, ticks would lie close together.
            ticks.retain(|tick| (self.at(*tick) - self.at(middle)).abs() >= TICKS_APART);
            ticks.push(middle);
            ticks
                .extend(part(middle, self.high).iter().filter(|tick| self.at(**tick) - self.at(middle) >= TICKS_APART));
            return ticks;
        }
        if self.is_logarithmic {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let stride = (decades / 8.0).ceil().max(1.0) as usize;
            let first = self.low.log10().floor() as i32;
            let powers = (first..=self.high.log10().ceil() as i32).step_by(stride);
            let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            return all.filter(|tick| (self.low..=self.high).contains(tick)).collect();
        }
        let rough = (self.high - self.low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|number| number as f64 * step).take_while(|tick| *tick <= self.high).collect()
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low <= high { (low, high) } else { (0.0, 0.0) }
}

/// A tick's value, short: 1500000 is 1.5M.
fn label(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        size if size > 0.0 && size < 1e-3 => return format!("{value:.0e}"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.4}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn put(svg: &mut String, text: &str) {
    svg.write_str(text).expect("a string takes everything");
}

fn stroke(colour: usize) -> String {
    let (light, _, dashes) = LINES[colour];
    let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
    format!("class=\"c{colour}\" fill=\"none\" stroke=\"{light}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dashes}")
}

/// Text as it stands in SVG and HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64]) -> String {
        let point = |(index, value): (usize, &f64)| CurvePoint {
            x: index as f64,
            y: *value,
            smallest: value / 2.0,
            largest: value * 2.0,
        };
        let curve = Curve { label: "a <b> & c".to_owned(), points: values.iter().enumerate().map(point).collect() };
        let mark = Some((1.0, "calm"));
        let (title, healthy) = ("a chart".to_owned(), Some((0.4, 0.8, "best".to_owned())));
        let (x_label, y_label) = ("s".to_owned(), "m".to_owned());
        Chart { title, x_label, y_label, curves: vec![curve], mark, healthy, ..Chart::default() }.to_svg()
    }

    #[test]
    fn a_chart_has_axes_with_units_a_legend_and_two_grounds() {
        let svg = chart(&[1.0, 2.0, 3.0]);
        for part in [
            "<title>a chart",
            ">s</text>",
            ">m</text>",
            "a &lt;b&gt; &amp; c",
            "dark",
            ">calm<",
            "fill-opacity",
            ">best<",
        ] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(!svg.contains("@media (prefers"), "paper is light: {svg}");
    }

    #[test]
    fn values_that_cannot_be_shown_are_left_out() {
        for values in [&[f64::NAN, 1.0][..], &[0.0, 1e-9, 1.0], &[f64::INFINITY], &[], &[0.0, 0.0]] {
            let svg = chart(values);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
        }
    }

    #[test]
    fn a_line_has_a_gap_where_nothing_is_known_and_a_dot_where_one_value_is() {
        let curve = |values: &[f64]| {
            let points = values.iter().enumerate().map(|(index, value)| CurvePoint::new(index as f64, *value));
            let curves = vec![Curve { label: String::new(), points: points.collect() }];
            let svg = Chart { curves, ..Chart::default() }.to_svg();
            svg.lines().find(|line| line.contains("round\" d=")).expect("a line").to_owned()
        };
        assert_eq!(curve(&[1.0, 2.0, 3.0, 4.0]).matches('M').count(), 1);
        let broken = curve(&[1.0, 2.0, f64::NAN, 4.0]);
        assert!(broken.matches('M').count() == 2 && broken.contains("h0"), "{broken}");
    }

    #[test]
    fn values_below_zero_are_drawn_where_they_are() {
        let points = [-1.0, -0.5, 0.5].iter().enumerate().map(|(index, value)| CurvePoint::new(index as f64, *value));
        let curves = vec![Curve { label: String::new(), points: points.collect() }];
        let svg = Chart { curves, ..Chart::default() }.to_svg();
        let line = svg.lines().find(|line| line.contains("round\" d=\"M")).expect("a line");
        let (_, way) = line.split_once("d=\"M").expect("a way");
        let corner = |corner: &str| corner.trim_end_matches("\"/>").split_once(' ').and_then(|(_, y)| y.parse().ok());
        let heights: Vec<f64> = way.split('L').map(|place| corner(place).expect("a number")).collect();
        assert!(heights.windows(2).all(|pair| pair[0] > pair[1] + 20.0), "{heights:?}");
        assert!(svg.contains(">-0.5</text>") && svg.contains(">0</text>"), "{svg}");
        let axis = Axis::fitting([-3.0, 500.0, 0.1].into_iter(), 0.0, 1.0);
        assert!(!axis.is_logarithmic && axis.at(-3.0) < axis.at(0.1), "{} to {}", axis.low, axis.high);
    }

    #[test]
    fn what_lies_beyond_the_half_takes_no_more_of_the_axis_than_what_lies_before() {
        let axis = |half| Axis::linear([0.0, 865.0].into_iter(), 100.0, 700.0).halved_at(Some(half));
        assert_eq!(
            [0.0, 20.0, 40.0, 452.5, 865.0].map(|value| axis(40.0).at(value)),
            [100.0, 250.0, 400.0, 550.0, 700.0]
        );
        // A longer first part needs no help.
        assert_eq!(axis(500.0).at(432.5), 400.0);
        let ticks = axis(40.0).ticks();
        assert!(ticks.contains(&10.0) && ticks.contains(&40.0) && ticks.contains(&800.0), "{ticks:?}");
        assert!(
            ticks.windows(2).all(|pair| axis(40.0).at(pair[1]) - axis(40.0).at(pair[0]) >= TICKS_APART),
            "{ticks:?}"
        );
    }

    #[test]
    fn ticks_are_round_and_few() {
        for (low, high, is_logarithmic) in
            [(0.0, 0.37, false), (0.0, 135.0, false), (1e-5, 3.0, true), (2.0, 90.0, true)]
        {
            let ticks = Axis { low, high, is_logarithmic, from: 0.0, to: 1.0, middle: None }.ticks();
            assert!((3..=9).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
        }
        assert_eq!([0.1, 2.0, 1_500_000.0, 20_000.0, 1e-5].map(label), ["0.1", "2", "1.5M", "20k", "1e-5"]);
    }
}
