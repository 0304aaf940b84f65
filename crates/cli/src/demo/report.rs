//! The report: one HTML file that needs nothing else, with the table, the delay CDF and a time line
//! per strategy. Pure: data in, text out.

use std::fmt::Write as _;

use roadweave_lab::figures::{Results, Run, Scene};

use super::charts::{self, COLORS, LINK_COLORS};
use super::table::COLUMNS;

const STYLE: &str = "
body{font:15px/1.5 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:1080px;
margin:2.5rem auto;padding:0 1.5rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.4rem 0 .4rem}
p,dd,dt{margin:.2rem 0}.muted{color:#667080}
table{border-collapse:collapse;width:100%;margin:.8rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .5rem;text-align:right;border-bottom:1px solid #e3e7ec;white-space:nowrap}
th{font-weight:600;color:#667080;font-size:.82rem}
th:first-child,td:first-child{text-align:left;font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1.2rem}dt{color:#667080}dd{margin:.2rem 0}
i.key{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin:0 .35em 0 1em;
vertical-align:-.1em}i.key:first-child{margin-left:0}
svg{display:block;width:100%;height:auto}svg text{font-family:system-ui,sans-serif}
.wide{overflow-x:auto}";

/// The whole report.
pub fn render(results: &Results, scene: &Scene, runs: &[Run]) -> String {
    let mut html = String::with_capacity(1 << 20);
    html.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width\">");
    let _ = writeln!(html, "<title>Roadweave demo</title><style>{STYLE}</style></head><body>");
    let _ = writeln!(
        html,
        "<h1>Roadweave demo</h1><p class=\"muted\">{} s of 1080p30 video over {} emulated links, \
         scenario {}, seed {}</p>",
        results.seconds,
        scene.links.len(),
        escape(&results.scenario),
        results.seed
    );
    table(&mut html, results);
    delays(&mut html, runs);
    time_lines(&mut html, scene, runs);
    facts(&mut html, scene);
    definitions(&mut html);
    html.push_str("</body></html>\n");
    html
}

fn table(html: &mut String, results: &Results) {
    html.push_str("<div class=\"wide\"><table><thead><tr>");
    for (heading, _) in COLUMNS {
        let _ = write!(html, "<th>{heading}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for (index, figures) in results.strategies.iter().enumerate() {
        html.push_str("<tr>");
        for (column, (_, content)) in COLUMNS.iter().enumerate() {
            let key = if column == 0 { key(&COLORS, index) } else { String::new() };
            let _ = write!(html, "<td>{key}{}</td>", escape(&content(figures)));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>\n");
}

fn delays(html: &mut String, runs: &[Run]) {
    html.push_str("<h2>Packet delay</h2><p class=\"muted\">Share of all packets sent that ");
    html.push_str("arrived within a delay; what a curve lacks to 100 % was lost. ");
    legend(html, &COLORS, runs.iter().map(|run| run.figures.strategy.as_str()));
    html.push_str("</p>\n");
    html.push_str(&charts::delay_cdf(runs));
}

fn time_lines(html: &mut String, scene: &Scene, runs: &[Run]) {
    html.push_str("<h2>Capacity of the links</h2><p class=\"muted\">Mbit/s, vehicle to cloud, ");
    html.push_str("stacked; the same for every strategy. ");
    legend(html, &LINK_COLORS, scene.links.iter().map(|(name, _)| name.as_str()));
    html.push_str("</p>\n");
    html.push_str(&charts::stacked(&scene.links, &[]));
    for run in runs {
        let _ = writeln!(
            html,
            "<h2>{}</h2><p class=\"muted\">Mbit/s sent over each link, stacked; red bands are \
             stalls. Below: packets per 100 ms, repairs sent upwards (green), packets \
             missing downwards (red).</p>",
            escape(&run.figures.strategy)
        );
        html.push_str(&charts::stacked(&run.timeline.uplinks, &run.stalls));
        html.push_str(&charts::losses(&run.timeline));
    }
}

fn facts(html: &mut String, scene: &Scene) {
    html.push_str("<h2>What was run</h2><dl>");
    for (word, value) in &scene.facts {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(word), escape(value));
    }
    html.push_str("</dl>\n");
}

fn definitions(html: &mut String) {
    html.push_str(
        "<h2>What the figures mean</h2><dl>\
         <dt>fps</dt><dd>frames shown per second whose packets all arrived, as did those of every \
         frame back to the last IDR frame</dd>\
         <dt>stall</dt><dd>sum of the gaps between shown frames above 200 ms, by the stream time</dd>\
         <dt>SSIM</dt><dd>similarity of each frame sent to the picture seen in its place, at \
         640x360; a missing frame leaves the last picture standing</dd>\
         <dt>delay</dt><dd>from the camera's socket to the viewer's, of packets that arrived</dd>\
         <dt>residual loss</dt><dd>packets that never arrived, or after the deadline (\u{201c}of it \
         late\u{201d})</dd>\
         <dt>redundancy</dt><dd>bytes sent in the tunnel beyond the distinct packets, by the bytes \
         of these</dd>\
         <dt>CPU</dt><dd>CPU time of the vehicle's client, percent of one core</dd></dl>\n",
    );
}

type Palette = [(u8, u8, u8)];

fn legend<'a>(html: &mut String, palette: &Palette, names: impl Iterator<Item = &'a str>) {
    for (index, name) in names.enumerate() {
        let _ = write!(html, "{}{}", key(palette, index), escape(name));
    }
}

fn key(palette: &Palette, index: usize) -> String {
    let (red, green, blue) = palette[index % palette.len()];
    format!("<i class=\"key\" style=\"background:rgb({red},{green},{blue})\"></i>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
