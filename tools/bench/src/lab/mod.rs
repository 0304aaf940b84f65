//! `roadweave lab`: whole drives in virtual time.
//!
//! ```text
//!   compare: drives ──> jobs (drive x strategy, bounds) ──> workers ──> Comparison ──> table, JSON
//!                                      ^                       |
//!                                      └─ saved runs <─────────┘
//!   run:     scenario.toml ──────────> one job ────────────────────> RunOutcome ─────> table, JSON
//!   raven:   recordings ──> routes ──> jobs (application x strategy) ───────────────> table, JSON
//!   downloads: pairs of links ──────> jobs (links x seed) ─────────────────────────> table, JSON
//!   fleet:   boxes, proxies, controller ─────────────────────────────────────────> table, JSON
//!   vod:     pairs of links ─────────> bitrates, jobs (way x kind x seed) ──────────> table, JSON
//!   applications: drives ──────────> jobs (drive x application x way x seed) ──────> table, JSON
//!   report:  that JSON ──────────────────────────────────────────────> Comparison ──> HTML
//! ```
//!
//! The experiments are in `roadweave_lab`; this module has files, processes, threads and output.

mod applications;
mod compare;
mod delays;
mod downloads;
mod drives;
mod encoder;
mod fleet;
mod losses;
mod pictures;
mod raven;
mod report;
mod run;
mod saved_runs;
mod spread;
mod table;
mod vod;
mod workers;

/// Runs experiments in virtual time: minutes of a drive in seconds, repeatable to the byte
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LabCommand {
    Run(run::RunArgs),
    Compare(compare::CompareArgs),
    Report(report::ReportArgs),
    Raven(raven::RavenArgs),
    Delays(delays::DelaysArgs),
    Downloads(downloads::DownloadsArgs),
    Encoder(encoder::EncoderArgs),
    Fleet(fleet::FleetArgs),
    Vod(vod::VodArgs),
    Applications(applications::ApplicationsArgs),
}

impl LabArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            LabCommand::Run(args) => args.run(),
            LabCommand::Compare(args) => args.run(),
            LabCommand::Report(args) => args.run(),
            LabCommand::Raven(args) => args.run(),
            LabCommand::Delays(args) => args.run(),
            LabCommand::Downloads(args) => args.run(),
            LabCommand::Encoder(args) => args.run(),
            LabCommand::Fleet(args) => args.run(),
            LabCommand::Vod(args) => args.run(),
            LabCommand::Applications(args) => args.run(),
        }
    }
}
