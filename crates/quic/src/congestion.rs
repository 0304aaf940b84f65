//! The congestion controllers that the gates wrap, by name.

mod bbr;

use std::sync::Arc;

use noq_proto::congestion::{ControllerFactory, CubicConfig};

use self::bbr::BbrFactory;
use crate::config::CongestionControl;

/// Builds the controllers of paths; `seed` is for their random times.
pub(crate) fn factory(
    name: CongestionControl,
    seed: u64,
) -> Arc<dyn ControllerFactory + Send + Sync> {
    match name {
        CongestionControl::Bbr => Arc::new(BbrFactory::new(seed)),
        CongestionControl::Cubic => Arc::new(CubicConfig::default()),
    }
}
