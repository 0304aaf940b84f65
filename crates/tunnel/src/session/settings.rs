//! What may be another while a session goes on: the lanes of the sending direction, their
//! strategies, and what the applications behind them tell.

use roadweave_recovery::Qoe;
use roadweave_types::Instant;

use super::Session;
use super::config::{SetError, are_alike, find_lane, needs_flows};
use crate::lane::{FlowTable, LaneConfig, LaneSender, Strategy};

impl Session {
    /// Lets a lane of the sending direction follow another strategy, from its next packet on.
    ///
    /// `names_uplinks`: whether [`Session::name_path`] will tell of uplinks, for strategies that
    /// name one.
    ///
    /// # Errors
    /// When there is no such lane, or the strategy cannot be used here; nothing is changed then.
    pub fn set_strategy(
        &mut self,
        lane: &str,
        strategy: &Strategy,
        names_uplinks: bool,
    ) -> Result<(), SetError> {
        self.lane(lane)?.set_strategy(strategy.clone(), names_uplinks).map_err(SetError::Strategy)
    }

    /// Whether [`Session::set_lanes`] can let the lanes be these: if they have the same names and
    /// keep the same kind of order.
    pub(crate) fn takes_lanes(&self, lanes: &[LaneConfig]) -> bool {
        are_alike(&self.lane_configs, lanes)
    }

    /// Lets the lanes of the sending direction be others, as far as [`Session::takes_lanes`].
    ///
    /// # Errors
    /// When a strategy cannot be used here; the lanes before it are changed then.
    pub(crate) fn set_lanes(
        &mut self,
        now: Instant,
        lanes: &[LaneConfig],
        names_uplinks: bool,
    ) -> Result<(), SetError> {
        for ((sender, config), lane) in
            self.senders.iter_mut().zip(&mut self.lane_configs).zip(lanes)
        {
            sender.set_config(now, lane.clone(), names_uplinks)?;
            *config = lane.clone();
        }
        if self.flows.is_none() && needs_flows(&self.lane_configs) {
            self.flows = Some(FlowTable::default());
        }
        Ok(())
    }

    /// Takes what the application behind a lane tells of its buffer, for strategies that ask for
    /// it.
    ///
    /// # Errors
    /// When there is no such lane.
    pub fn set_qoe(&mut self, now: Instant, lane: &str, qoe: Qoe) -> Result<(), SetError> {
        self.lane(lane).map(|sender| sender.set_qoe(now, qoe))
    }

    fn lane(&mut self, name: &str) -> Result<&mut LaneSender, SetError> {
        let position = find_lane(&self.lane_configs, name)?;
        Ok(&mut self.senders[position])
    }
}
