//! The report's charts, drawn as SVG.
//!
//! Time lines share one horizontal scale: 100 ms per step.

use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;
use roadweave_lab::figures::{Run, Timeline};

/// One colour per strategy or link, told apart by most colour-blind readers (Okabe and Ito), in
/// red, green and blue.
pub const COLORS: [(u8, u8, u8); 7] = [
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (120, 120, 120),
];

/// The colours of the links, apart from those of the strategies.
pub const LINK_COLORS: [(u8, u8, u8); 6] = [
    (44, 82, 130),
    (99, 148, 199),
    (163, 203, 224),
    (148, 163, 184),
    (71, 85, 105),
    (203, 213, 225),
];

const WIDTH: u32 = 1_000;
const GRID: RGBColor = RGBColor(227, 231, 236);
const INK: RGBColor = RGBColor(102, 112, 128);
const STALL: RGBColor = RGBColor(220, 38, 38);
const REPAIRS: RGBColor = RGBColor(0, 158, 115);
/// Where the axis of delays is labelled.
const TICKS_MS: [f64; 15] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 10e3, 20e3, 50e3];
/// A curve drawn with more points than this looks no better.
const CURVE_POINTS: usize = 400;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// The share of packets sent that arrived within a delay; horizontal axis logarithmic, ms.
pub fn delay_cdf(runs: &[Run]) -> String {
    draw(360, |area| {
        let delays = runs.iter().flat_map(|run| [run.delays.first(), run.delays.last()]).flatten();
        let (low, high) = delays.fold((f64::MAX, 0.0_f64), |(low, high), delay| {
            (low.min(millis(*delay)), high.max(millis(*delay)))
        });
        let range = low.clamp(1.0, 100.0)..high.clamp(200.0, 60_000.0);
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(34)
            .y_label_area_size(48)
            .build_cartesian_2d(range.log_scale().with_key_points(TICKS_MS.to_vec()), 0.0..1.0)?;
        chart
            .configure_mesh()
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 13, &INK))
            .x_desc("ms")
            .x_label_formatter(&|millis| format!("{millis:.0}"))
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .draw()?;
        for (run, color) in runs.iter().zip(COLORS.iter().cycle()) {
            let style = rgb(*color).stroke_width(2);
            chart.draw_series(LineSeries::new(cdf_points(run), style))?;
        }
        Ok(())
    })
}

/// Rates over time, one above the other, with `stalls` as bands behind them.
pub fn stacked(series: &[(String, Vec<f64>)], stalls: &[(Duration, Duration)]) -> String {
    let steps = series.iter().map(|(_, rates)| rates.len()).max().unwrap_or(0).max(1);
    let tops = cumulate(series, steps);
    let highest = tops.iter().flatten().fold(1.0_f64, |highest, top| highest.max(*top));
    draw(200, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(22)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..seconds(steps), 0.0..highest * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .y_labels(5)
            .label_style(("sans-serif", 13, &INK))
            .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
            .y_label_formatter(&|rate| format!("{rate:.0}"))
            .draw()?;
        // From the top of the stack down: each area covers what lies below it.
        for (index, top) in tops.iter().enumerate().rev() {
            let color = rgb(LINK_COLORS[index % LINK_COLORS.len()]);
            let points = top.iter().enumerate().map(|(step, rate)| (seconds(step), *rate));
            chart.draw_series(AreaSeries::new(points, 0.0, color))?;
        }
        let bands = stalls.iter().map(|(from, to)| {
            let corners = [(from.as_secs_f64(), 0.0), (to.as_secs_f64(), highest * 1.05)];
            Rectangle::new(corners, STALL.mix(0.35).filled())
        });
        chart.draw_series(bands)?;
        Ok(())
    })
}

/// Packets per step: repairs sent upwards, packets missing downwards.
pub fn losses(timeline: &Timeline) -> String {
    let steps = timeline.missing.len().max(timeline.repairs.len()).max(1);
    let highest = |counts: &[u32]| f64::from(counts.iter().copied().max().unwrap_or(0).max(4));
    let range = -highest(&timeline.missing) * 1.1..highest(&timeline.repairs) * 1.1;
    draw(110, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(0)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..seconds(steps), range)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .y_labels(4)
            .label_style(("sans-serif", 13, &INK))
            .y_label_formatter(&|packets| format!("{:.0}", packets.abs()))
            .draw()?;
        let bars = |counts: &[u32], sign: f64, color: RGBColor| -> Vec<_> {
            let struck = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            let bar = |(step, count): (usize, &u32)| {
                let corners = [(seconds(step), 0.0), (seconds(step + 1), sign * f64::from(*count))];
                Rectangle::new(corners, color.filled())
            };
            struck.map(bar).collect()
        };
        chart.draw_series(bars(&timeline.repairs, 1.0, REPAIRS))?;
        chart.draw_series(bars(&timeline.missing, -1.0, STALL))?;
        Ok(())
    })
}

/// Draws to a string of SVG.
fn draw(height: u32, paint: impl FnOnce(&Area<'_>) -> Result<(), DrawError>) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        // The only error the back end knows is that of a file, and there is none.
        paint(&area).and_then(|()| area.present()).expect("drawing to memory does not fail");
    }
    // Sized by the page, not by its own idea.
    svg.replacen(&format!("width=\"{WIDTH}\" height=\"{height}\" "), "", 1)
}

fn cdf_points(run: &Run) -> Vec<(f64, f64)> {
    let arrived = run.delays.len();
    let share = 1.0 - (run.figures.residual_loss - run.figures.late);
    let points = arrived.min(CURVE_POINTS);
    let point = |index: usize| {
        // The tail matters most: points lie denser towards the end.
        let position = 1.0 - (1.0 - index as f64 / points as f64).powi(2);
        let rank = ((position * arrived as f64) as usize).min(arrived - 1);
        (millis(run.delays[rank]), share * (rank + 1) as f64 / arrived as f64)
    };
    (0..=points).filter(|_| arrived > 0).map(point).collect()
}

/// The upper edge of each series when they stand one on the other.
fn cumulate(series: &[(String, Vec<f64>)], steps: usize) -> Vec<Vec<f64>> {
    let mut below = vec![0.0; steps];
    let mut tops = Vec::with_capacity(series.len());
    for (_, rates) in series {
        for (top, rate) in below.iter_mut().zip(rates) {
            *top += rate;
        }
        tops.push(below.clone());
    }
    tops
}

fn seconds(steps: usize) -> f64 {
    steps as f64 * Timeline::STEP.as_secs_f64()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn rgb((red, green, blue): (u8, u8, u8)) -> RGBColor {
    RGBColor(red, green, blue)
}
