//! Loss of every link beside that of its recording, as options.

use roadweave_emulate::{AddedLoss, DuplexLink};
use roadweave_terminal::exit::BadInput;

/// Options of the loss that is added to every link.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Losses {
    /// Lose this share of the packets of every link, beside what its recording loses, 0 to 0.9
    #[arg(long, value_name = "SHARE", value_parser = share)]
    loss: Option<f64>,
    /// The mean length of a burst of that loss, packets; default: packets are lost independently
    #[arg(long, value_name = "PACKETS", requires = "loss", value_parser = packets)]
    loss_burst: Option<f64>,
    /// Instead of bursts, lose it in stretches of this mean duration, ms
    #[arg(
        long,
        value_name = "MS",
        requires = "loss",
        conflicts_with = "loss_burst",
        value_parser = clap::value_parser!(u32).range(1..=60_000)
    )]
    loss_stretch: Option<u32>,
    /// The share of its packets that a stretch loses
    #[arg(long, value_name = "SHARE", requires = "loss_stretch", default_value_t = 0.6, value_parser = share)]
    loss_within: f64,
}

impl Losses {
    pub fn on(&self, link: DuplexLink) -> DuplexLink {
        self.added().into_iter().fold(link, DuplexLink::with_loss)
    }

    /// The loss; [`BadInput`] if it cannot be as bursts or stretches are.
    pub fn get(&self) -> Result<Option<AddedLoss>, BadInput> {
        let loss = self.added();
        let problem = match loss {
            Some(AddedLoss::Bursts { share, packets }) if share > packets / (1.0 + packets) => {
                "--loss: two bursts are apart by a packet at least: at most B / (1 + B) is lost, B \
                 being --loss-burst"
            }
            Some(AddedLoss::Stretches { share, within, .. }) if share > within => {
                "--loss: at most --loss-within, the share that a stretch loses"
            }
            _ => return Ok(loss),
        };
        Err(BadInput::new(problem.to_owned()))
    }

    fn added(&self) -> Option<AddedLoss> {
        let share = self.loss.filter(|share| *share > 0.0)?;
        Some(match (self.loss_stretch, self.loss_burst) {
            (Some(ms), _) => {
                AddedLoss::Stretches { share, within: self.loss_within, ms: ms.into() }
            }
            (None, Some(packets)) => AddedLoss::Bursts { share, packets },
            (None, None) => AddedLoss::Independent { share },
        })
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=0.9).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 0.9".to_owned())
}

fn packets(text: &str) -> Result<f64, String> {
    let packets = text.parse().ok().filter(|packets| (1.0..=1e6).contains(packets));
    packets.ok_or_else(|| "a burst has 1 to 1e6 packets".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        losses: Losses,
    }

    fn get(options: &str) -> Result<Option<AddedLoss>, String> {
        let words = ["lab"].into_iter().chain(options.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        options.losses.get().map_err(|error| error.to_string())
    }

    #[test]
    fn losses_are_independent_or_in_bursts_or_in_stretches() {
        let share = 0.06;
        assert_eq!(get(""), Ok(None));
        assert_eq!(get("--loss 0"), Ok(None));
        assert_eq!(get("--loss 0.06"), Ok(Some(AddedLoss::Independent { share })));
        let bursts = AddedLoss::Bursts { share, packets: 20.0 };
        assert_eq!(get("--loss 0.06 --loss-burst 20"), Ok(Some(bursts)));
        let stretches = AddedLoss::Stretches { share, within: 0.6, ms: 200.0 };
        assert_eq!(get("--loss 0.06 --loss-stretch 200"), Ok(Some(stretches)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_option_and_the_bound() {
        for (options, part) in [
            ("--loss 2", "a share is a number from 0 to 0.9"),
            ("--loss-burst 5", "--loss <SHARE>"),
            ("--loss 0.1 --loss-burst 0", "1 to 1e6 packets"),
            ("--loss 0.1 --loss-burst 3 --loss-stretch 200", "cannot be used with"),
            ("--loss 0.6 --loss-burst 1", "at most B / (1 + B)"),
            ("--loss 0.7 --loss-stretch 200", "at most --loss-within"),
        ] {
            let error = get(options).expect_err(options);
            assert!(error.contains(part), "{options}: {error}");
        }
    }
}
