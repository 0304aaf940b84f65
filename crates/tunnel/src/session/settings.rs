//! What may be another while a session goes on: the lanes of the sending direction, their
//! strategies, and what the applications behind them tell.

use roadweave_proto::wire::{Control, PlayerReport};
use roadweave_proto::{Instant, LaneId};
use roadweave_recovery::Qoe;

use super::Session;
use super::config::{SetError, are_alike, find_lane, needs_flows};
use crate::carrier::Carrier;
use crate::lane::{FlowTable, LaneConfig, LaneSender, Strategy, Superseded};
use crate::players::{qoe_of, report_of};

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

    /// A video in a lane has begun anew: what is older of it leaves no more, and is not repaired.
    /// Returns how many packets were given up.
    ///
    /// # Errors
    /// When there is no such lane.
    pub fn supersede(
        &mut self,
        now: Instant,
        lane: &str,
        superseded: Superseded,
    ) -> Result<u64, SetError> {
        self.lane(lane).map(|sender| sender.supersede(now, superseded))
    }

    /// Takes what a player at the peer's side tells of its buffer, for the lane that brings its
    /// video; whether there is such a lane.
    pub(crate) fn on_player(&mut self, now: Instant, report: &PlayerReport) -> bool {
        let mut senders = (0_u8..).map(LaneId).zip(&mut self.senders);
        let of = senders.find(|(_, sender)| sender.config().name == report.lane);
        let Some((id, sender)) = of else { return false };
        let players = self.players.entry(id).or_default();
        let (at, qoe) = players.on_report(now, report.player, qoe_of(report));
        sender.set_qoe(at, qoe);
        true
    }

    /// Tells the peer how the buffer of a player at this side does, whose video the peer's lane
    /// `lane` brings; unless it told a moment ago, or too many do. Whether it was told.
    pub(crate) fn tell_player(
        &mut self,
        now: Instant,
        lane: &str,
        player: u64,
        qoe: Qoe,
        carrier: &mut impl Carrier,
    ) -> bool {
        let report = Control::Player(report_of(lane, player, qoe));
        self.tellers.allows(now, player, &qoe) && carrier.send_message(report.to_bytes())
    }

    fn lane(&mut self, name: &str) -> Result<&mut LaneSender, SetError> {
        let position = find_lane(&self.lane_configs, name)?;
        Ok(&mut self.senders[position])
    }
}
