//! The congestion controllers that the gates wrap, by name.

mod bbr;

use std::sync::Arc;

use noq_proto::congestion::{ControllerFactory, CubicConfig};

use self::bbr::BbrFactory;
use crate::config::CongestionControl;

impl CongestionControl {
    /// The controllers of paths, as the QUIC library takes them; `seed` is for their random times.
    pub fn factory(self, seed: u64) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr => Arc::new(BbrFactory::new(seed)),
            Self::Cubic => Arc::new(CubicConfig::default()),
        }
    }
}
