//! `roadweave encoder-feedback`: encoder targets, a line each.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use roadweave_node::local::{EncoderWord, RequestError, RpcError, Subscribe, Topic, subscribe};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::EncoderTarget;

use crate::set::refused;

/// Prints targets for a video encoder behind this box, a line for each change.
///
/// A line has two numbers: the largest size in bytes with which the next frame arrives within the
/// lane's deadline, and a bitrate in bits per second for encoders that cannot size single frames.
/// Both include the tunnel's headers, about 50 bytes of each packet. Zeros mean that nothing would
/// arrive. When the client stops, it prints zeros and waits for the client to start again.
#[derive(Debug, clap::Args)]
pub struct EncoderFeedbackArgs {
    /// The socket of the running client
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// The lane that carries the video; without it each line begins with its lane's name
    #[arg(long)]
    lane: Option<String>,
    /// The shortest time between two lines, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(Subscribe::INTERVALS_MS))]
    interval: u64,
    /// Print each target as JSON, as the local socket sends it
    #[arg(long, conflicts_with = "lane")]
    json: bool,
}

impl EncoderFeedbackArgs {
    pub fn run(&self) -> Result<()> {
        let subscription = Subscribe { topic: Topic::Encoder, interval_ms: self.interval };
        let mut newest: Option<EncoderWord> = None;
        loop {
            let mut printed = Ok(());
            let result = subscribe(&self.socket, &subscription, |word| {
                let word = serde_json::from_value(word).unwrap_or_default();
                // A slow reader gets the newest target once it has read.
                if !has_unread() {
                    printed = self.print(&word);
                }
                newest = Some(word);
                printed.is_ok()
            });
            printed?;
            match (result, &mut newest) {
                // A busy instance, or one with too many subscribers, says nothing of links.
                (Err(RequestError::Refused(error)), _) if error.code == RpcError::BUSY => {
                    out::note(format_args!("{}; trying again", error.message));
                }
                (Err(error), None) => return Err(refused(error)),
                (_, None) => {}
                (_, Some(word)) => {
                    word.lanes.values_mut().for_each(|target| *target = EncoderTarget::default());
                    self.print(word)?;
                }
            }
            std::thread::sleep(RETRY);
        }
    }

    fn print(&self, word: &EncoderWord) -> Result<()> {
        if self.json {
            return Ok(out::line(serde_json::to_string(word)?)?);
        }
        let numbers = |it: &EncoderTarget| format!("{} {}", it.frame_bytes, it.bitrate.as_bps());
        let Some(lane) = &self.lane else {
            let lines = word.lanes.iter().map(|(lane, it)| format!("{lane} {}\n", numbers(it)));
            return Ok(out::print(lines.collect::<String>())?);
        };
        let Some(target) = word.lanes.get(lane) else {
            let names: Vec<&str> = word.lanes.keys().map(String::as_str).collect();
            let names = names.join(", ");
            return Err(BadInput::new(format!("no lane {lane}; there are {names}")).into());
        };
        Ok(out::line(numbers(target))?)
    }
}

/// Unknown for a terminal, whose unread bytes are its user's input.
fn has_unread() -> bool {
    let out = io::stdout();
    !out.is_terminal() && rustix::io::ioctl_fionread(out).is_ok_and(|bytes| bytes > 0)
}

const RETRY: Duration = Duration::from_millis(500);
