//! The congestion controllers that the gates wrap, by name.

use std::sync::Arc;

use noq_proto::congestion::{Bbr3Config, ControllerFactory, CubicConfig};

use crate::config::CongestionControl;

/// What builds the controller of a path.
pub(crate) fn factory(name: CongestionControl) -> Arc<dyn ControllerFactory + Send + Sync> {
    match name {
        CongestionControl::Bbr => Arc::new(Bbr3Config::default()),
        CongestionControl::Cubic => Arc::new(CubicConfig::default()),
    }
}
