//! The load curves as a picture.

use std::fmt::Write;

use super::curve::{BINS_PER_SECOND, StormReport};
use super::simulation::StormConfig;

const WIDTH: u64 = 800;
const LEFT: u64 = 60;
const RIGHT: u64 = 780;
const TOP: u64 = 64;
const PANEL: u64 = 120;
const GAP: u64 = 34;

const STYLE: &str = "\
text{font:13px sans-serif;fill:#24292f}
.t{font-weight:bold;font-size:14px}
.s{font-size:12px;fill:#57606a}
.axis{stroke:#57606a;stroke-width:1}
.grid{stroke:#d0d7de;stroke-width:1;stroke-dasharray:4 3}
.load{fill:#cf222e;fill-opacity:.25;stroke:#cf222e;stroke-width:1}
.ok{stroke:#1a7f37;stroke-width:2;fill:none}
.capacity{stroke:#0969da;stroke-width:1.5;stroke-dasharray:6 3}
.outage{fill:#57606a;fill-opacity:.12}
";

/// One panel below the other, all with the same scale.
pub(super) fn render(config: &StormConfig, reports: &[StormReport]) -> String {
    let height = TOP + reports.len() as u64 * (PANEL + GAP) + 16;
    let peak = reports.iter().map(StormReport::peak_per_second).max().unwrap_or_default();
    let scale = Scale { seconds: config.seconds, peak: peak.next_multiple_of(2_000).max(2_000) };
    let title = format!(
        "{} clients, a service for {} requests per second that dies for {} seconds",
        config.clients,
        config.capacity_per_second(),
        config.outage.end - config.outage.start
    );
    let mut svg = Svg(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#ffffff\" stroke=\"#d0d7de\"/>\n\
         <text x=\"16\" y=\"24\" class=\"t\">{title}</text>\n",
        WIDTH - 1,
        height - 1,
    ));
    legend(&mut svg);
    for (number, report) in reports.iter().enumerate() {
        let top = TOP + number as u64 * (PANEL + GAP) + 20;
        panel(&mut svg, config, &scale, report, top);
    }
    svg.0.push_str("</svg>\n");
    svg.0
}

struct Svg(String);

impl Svg {
    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{arguments}");
    }
}

struct Scale {
    seconds: u64,
    /// Attempts per second at the top of a panel.
    peak: u64,
}

impl Scale {
    #[expect(clippy::cast_precision_loss, reason = "a picture has pixels")]
    fn x(&self, tenths: u64) -> f64 {
        LEFT as f64 + tenths as f64 * (RIGHT - LEFT) as f64 / (self.seconds * BINS_PER_SECOND as u64) as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "a picture has pixels")]
    fn y(&self, bottom: u64, per_second: u64) -> f64 {
        bottom as f64 - per_second as f64 * (PANEL - 20) as f64 / self.peak as f64
    }
}

fn legend(svg: &mut Svg) {
    svg.line(format_args!("<rect x=\"16\" y=\"38\" width=\"22\" height=\"10\" class=\"load\"/>"));
    svg.line(format_args!("<text x=\"44\" y=\"48\" class=\"s\">attempts per second</text>"));
    svg.line(format_args!("<line x1=\"190\" y1=\"43\" x2=\"212\" y2=\"43\" class=\"ok\"/>"));
    svg.line(format_args!("<text x=\"218\" y=\"48\" class=\"s\">responses in time per second</text>"));
    svg.line(format_args!("<line x1=\"410\" y1=\"43\" x2=\"432\" y2=\"43\" class=\"capacity\"/>"));
    svg.line(format_args!("<text x=\"438\" y=\"48\" class=\"s\">capacity</text>"));
    svg.line(format_args!("<rect x=\"520\" y=\"38\" width=\"22\" height=\"10\" class=\"outage\"/>"));
    svg.line(format_args!("<text x=\"548\" y=\"48\" class=\"s\">the service is dead</text>"));
}

fn panel(svg: &mut Svg, config: &StormConfig, scale: &Scale, report: &StormReport, top: u64) {
    let bottom = top + PANEL - 8;
    let second = |second: u64| scale.x(second * BINS_PER_SECOND as u64);
    let (start, end) = (second(config.outage.start), second(config.outage.end));
    let plot_top = scale.y(bottom, scale.peak);
    svg.line(format_args!(
        "<rect x=\"{start:.1}\" y=\"{plot_top:.1}\" width=\"{:.1}\" height=\"{}\" class=\"outage\"/>",
        end - start,
        PANEL - 20
    ));
    svg.line(format_args!("<text x=\"{LEFT}\" y=\"{}\">{}</text>", top - 2, report.name));
    svg.line(format_args!(
        "<text x=\"{RIGHT}\" y=\"{}\" class=\"s\" text-anchor=\"end\">peak {} per second, {:.2} attempts per request \
         while dead, recovers: {}</text>",
        top - 2,
        report.peak_per_second(),
        report.amplification(),
        report.recovery_text()
    ));
    for per_second in [0, scale.peak / 2, scale.peak] {
        let y = scale.y(bottom, per_second);
        svg.line(format_args!(
            "<text x=\"52\" y=\"{:.1}\" class=\"s\" text-anchor=\"end\">{per_second}</text>",
            y + 4.0
        ));
        let class = if per_second == 0 { "axis" } else { "grid" };
        svg.line(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" class=\"{class}\"/>"
        ));
    }
    for mark in (0..=scale.seconds).step_by(10) {
        svg.line(format_args!(
            "<text x=\"{:.1}\" y=\"{}\" class=\"s\" text-anchor=\"middle\">{mark} s</text>",
            second(mark),
            bottom + 15
        ));
    }
    svg.line(format_args!(
        "<path d=\"{}V{bottom}H{LEFT}Z\" class=\"load\"/>",
        steps(scale, bottom, &report.attempts)
    ));
    let smooth: Vec<_> = report
        .responses
        .chunks(BINS_PER_SECOND)
        .flat_map(|bins| std::iter::repeat_n(bins.iter().sum::<u64>() / BINS_PER_SECOND as u64, bins.len()))
        .collect();
    svg.line(format_args!("<path d=\"{}\" class=\"ok\"/>", steps(scale, bottom, &smooth)));
    let capacity = scale.y(bottom, config.capacity_per_second());
    svg.line(format_args!(
        "<line x1=\"{LEFT}\" y1=\"{capacity:.1}\" x2=\"{RIGHT}\" y2=\"{capacity:.1}\" class=\"capacity\"/>"
    ));
}

/// A line of steps; equal neighbours share one.
fn steps(scale: &Scale, bottom: u64, bins: &[u64]) -> String {
    let mut path = format!("M{LEFT} {bottom}");
    let mut tenth = 0;
    for run in bins.chunk_by(|a, b| a == b) {
        let y = scale.y(bottom, run[0] * BINS_PER_SECOND as u64);
        tenth += run.len() as u64;
        // Writing to a string does not fail.
        let _ = write!(path, "V{y:.1}H{:.1}", scale.x(tenth));
    }
    path
}
