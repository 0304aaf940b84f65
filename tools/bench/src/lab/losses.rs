//! Loss of every link beside that of its recording, as options.

use roadweave_emulate::{AddedLoss, DuplexLink};

/// Options of the loss that is added to every link.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Losses {
    /// Lose this share of the packets of every link, beside what its recording loses, 0 to 0.9
    #[arg(long, value_name = "SHARE", value_parser = share)]
    loss: Option<f64>,
    /// The mean length of a burst of that loss, packets
    #[arg(long, value_name = "PACKETS", requires = "loss", default_value_t = 1.0, value_parser = packets)]
    loss_burst: f64,
    /// Instead of bursts, lose it in stretches of this mean duration, ms
    #[arg(
        long,
        value_name = "MS",
        requires = "loss",
        conflicts_with = "loss_burst",
        value_parser = clap::value_parser!(u32).range(1..=60_000)
    )]
    loss_stretch: Option<u32>,
    /// The share of its packets that a stretch loses; at least --loss
    #[arg(long, value_name = "SHARE", requires = "loss_stretch", default_value_t = 0.6, value_parser = share)]
    loss_within: f64,
}

impl Losses {
    pub fn on(&self, link: DuplexLink) -> DuplexLink {
        self.get().into_iter().fold(link, DuplexLink::with_loss)
    }

    pub fn get(&self) -> Option<AddedLoss> {
        let share = self.loss.filter(|share| *share > 0.0)?;
        Some(match self.loss_stretch {
            Some(ms) => {
                AddedLoss::Stretches { share, within: self.loss_within.max(share), ms: ms.into() }
            }
            None => AddedLoss::Bursts { share, packets: self.loss_burst },
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
