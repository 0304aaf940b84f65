//! `roadweave lab report`: a comparison as an HTML page.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use roadweave_lab::compare::Comparison;
use roadweave_lab::report::{self, Options};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Makes an HTML report of what `lab compare --json --details` has found
///
/// One file that needs nothing else: tables, delay distributions, box plots, where time is lost,
/// and a time line of each drive.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// What `lab compare --json --details` printed
    results: PathBuf,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Strategies whose time lines are drawn; default: all but single links
    #[arg(long, value_name = "STRATEGIES", value_delimiter = ',')]
    timelines: Option<Vec<String>>,
}

impl ReportArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let comparison = self.read()?;
        let options = Options { timelines: self.timelines.clone() };
        self.check_timelines(&comparison)?;
        let html = report::render(&comparison, &options);
        fs::write(&self.out, html)
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        out::note(format_args!("The report is in {}", self.out.display()));
        Ok(())
    }

    fn read(&self) -> anyhow::Result<Comparison> {
        let path = self.results.display();
        let bytes = fs::read(&self.results)
            .map_err(|error| BadInput::new(format!("cannot read {path}: {error}")))?;
        match serde_json::from_slice(&bytes) {
            Ok(comparison) => Ok(comparison),
            Err(error) => bail!(BadInput::new(format!(
                "{path}: not what `roadweave lab compare --json --details` prints: {error}"
            ))),
        }
    }

    fn check_timelines(&self, comparison: &Comparison) -> Result<(), BadInput> {
        let names: Vec<&str> =
            comparison.pooled.iter().map(|pooled| pooled.figures.strategy.as_str()).collect();
        match self.timelines.iter().flatten().find(|wanted| !names.contains(&wanted.as_str())) {
            Some(unknown) => Err(BadInput::new(format!(
                "--timelines: there is no {unknown} in {}; there are {}",
                self.results.display(),
                names.join(", ")
            ))),
            None => Ok(()),
        }
    }
}
