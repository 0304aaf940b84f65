//! Changes to a running session: its sending lanes, strategies, and applications' state.

use roadweave_proto::wire::{Control, PlayerReport};
use roadweave_proto::{Instant, LaneId};
use roadweave_recovery::Qoe;

use super::Session;
use super::config::{SetError, are_alike, find_lane, needs_flows};
use crate::carrier::Carrier;
use crate::lane::{FlowTable, LaneConfig, LaneSender, Strategy, Superseded};
use crate::players::{qoe_of, report_of};

impl Session {
    /// Sets the strategy of a sending lane, from its next packet on. `names_uplinks`: whether
    /// [`Session::name_path`] will be called.
    ///
    /// # Errors
    /// If there is no such lane, or the strategy cannot be used here; nothing is changed then.
    pub fn set_strategy(
        &mut self,
        lane: &str,
        strategy: &Strategy,
        names_uplinks: bool,
    ) -> Result<(), SetError> {
        self.lane(lane)?.set_strategy(strategy.clone(), names_uplinks).map_err(SetError::Strategy)
    }

    /// Whether [`Session::set_lanes`] accepts the lanes: same names, same kinds of order.
    pub(crate) fn takes_lanes(&self, lanes: &[LaneConfig]) -> bool {
        are_alike(&self.lane_configs, lanes)
    }

    /// Replaces the settings of the sending lanes, if [`Session::takes_lanes`] allows. Fails if a
    /// strategy cannot be used here; earlier lanes are changed then.
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

    /// Sets the buffer state of the application behind a lane, for strategies that use it.
    ///
    /// # Errors
    /// If there is no such lane.
    pub fn set_qoe(&mut self, now: Instant, lane: &str, qoe: Qoe) -> Result<(), SetError> {
        self.lane(lane).map(|sender| sender.set_qoe(now, qoe))
    }

    /// Gives up the older packets of a restarted video in a lane. Returns how many.
    ///
    /// # Errors
    /// If there is no such lane.
    pub fn supersede(
        &mut self,
        now: Instant,
        lane: &str,
        superseded: Superseded,
    ) -> Result<u64, SetError> {
        self.lane(lane).map(|sender| sender.supersede(now, superseded))
    }

    /// Takes a report of one of the peer's players. Returns whether its lane exists.
    pub(crate) fn on_player(&mut self, now: Instant, report: &PlayerReport) -> bool {
        let mut senders = (0_u8..).map(LaneId).zip(&mut self.senders);
        let of = senders.find(|(_, sender)| sender.config.name == report.lane);
        let Some((id, sender)) = of else { return false };
        let players = self.players.entry(id).or_default();
        let (at, qoe) = players.on_report(now, report.player, qoe_of(report));
        sender.set_qoe(at, qoe);
        true
    }

    pub(crate) fn report_player(
        &mut self,
        now: Instant,
        lane: &str,
        player: u64,
        qoe: Qoe,
        carrier: &mut impl Carrier,
    ) -> bool {
        let report = Control::Player(report_of(lane, player, qoe));
        self.report_limiter.allows(now, player, &qoe) && carrier.send_message(report.to_bytes())
    }

    fn lane(&mut self, name: &str) -> Result<&mut LaneSender, SetError> {
        let position = find_lane(&self.lane_configs, name)?;
        Ok(&mut self.senders[position])
    }
}
