//! Progress of the demo: a bar on a terminal, a line per step elsewhere.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};
use roadweave_terminal::out;

use super::setup::Progress;

#[derive(Debug)]
pub struct Display {
    runs: usize,
    terminal: bool,
}

#[derive(Debug)]
pub struct RunBar {
    bar: ProgressBar,
}

impl Display {
    pub fn new(runs: usize) -> Self {
        Self { runs, terminal: std::io::stderr().is_terminal() }
    }

    pub fn encoding(&self, frames: u32) -> ProgressBar {
        self.bar(frames, "encoding the clip", "{pos}/{len} frames")
    }

    pub fn run(&self, index: usize, strategy: &str, seconds: u32) -> RunBar {
        let title = format!("{}/{} {strategy}", index + 1, self.runs);
        RunBar { bar: self.bar(seconds, &title, "{pos}/{len} s {msg}") }
    }

    fn bar(&self, length: u32, title: &str, counter: &str) -> ProgressBar {
        if !self.terminal {
            out::note(title);
        }
        let template = format!("{{prefix:24}} {{bar:32.cyan/dim}} {counter}");
        let style = ProgressStyle::with_template(&template).expect("the template is constant");
        ProgressBar::new(length.into())
            .with_style(style.progress_chars("━━─"))
            .with_prefix(title.to_owned())
    }
}

impl RunBar {
    pub fn show(&self, progress: Progress) {
        match progress {
            Progress::Connecting => self.bar.set_message("connecting"),
            Progress::Streaming(elapsed) => {
                self.bar.set_message("streaming");
                self.bar.set_position(elapsed.as_secs());
            }
            Progress::Comparing => self.bar.set_message("comparing pictures"),
        }
    }
}

impl Drop for RunBar {
    fn drop(&mut self) {
        self.bar.finish_with_message("done");
    }
}
