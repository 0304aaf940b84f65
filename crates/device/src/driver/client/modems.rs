//! What modems tell, by the local socket, and what it says about who is tried first.

use roadweave_proto::{Instant, UplinkTraits};
use roadweave_tunnel::Client;
use serde_json::{Value, json};

use super::ClientRole;
use crate::driver::settings;
use crate::local::{RpcError, TellModem};
use crate::technology::hardware;

impl ClientRole {
    /// Keeps what was told of a modem, if its interface is an uplink.
    pub(super) fn tell_modem(
        &mut self,
        client: &mut Client,
        now: Instant,
        params: &Value,
    ) -> Result<Value, RpcError> {
        let TellModem { uplink, facts } = settings::parse(params)?;
        facts.check().map_err(RpcError::invalid_params)?;
        let is_told = self.monitor.uplinks().any(|known| known.name == uplink);
        if is_told {
            self.forget_modems(client, now);
            self.modems.tell(now, uplink.clone(), facts);
            // It may be by its SIM.
            self.apply_policy(client, &uplink);
        }
        Ok(json!({ "told": is_told }))
    }

    /// What nobody tells any more counts no more.
    pub(super) fn forget_modems(&mut self, client: &mut Client, now: Instant) {
        for uplink in self.modems.forget(now) {
            self.apply_rank(client, &uplink);
        }
    }

    /// Lets an uplink be tried before others or behind them, by what is known of its technology.
    /// That is a hint for beginnings: where a round trip is measured it says nothing.
    pub(super) fn apply_rank(&self, client: &mut Client, uplink: &str) {
        client.set_rank(uplink, self.rank_of(uplink));
    }

    /// Where an uplink stands in the order of technologies.
    pub(super) fn rank_of(&self, uplink: &str) -> u8 {
        let hardware = hardware(uplink);
        self.rank(&self.traits_of(uplink, &hardware))
    }

    pub(super) fn rank(&self, uplink: &UplinkTraits) -> u8 {
        self.options.technologies.rank(uplink, self.modems.of(uplink.name))
    }
}
