//! Modem facts from the local socket, and the rank of an uplink's technology.

use roadweave_config::UplinkTraits;
use roadweave_linux::hardware;
use roadweave_proto::Instant;
use roadweave_tunnel::Client;
use serde_json::{Value, json};

use super::ClientRole;
use crate::driver::settings;
use crate::driver::technology::rank;
use crate::local::{RpcError, TellModem};

impl ClientRole {
    pub(super) fn tell_modem(
        &mut self,
        client: &mut Client,
        now: Instant,
        params: &Value,
    ) -> Result<Value, RpcError> {
        let TellModem { uplink, facts } = settings::parse(params)?;
        facts.check().map_err(RpcError::invalid_params)?;
        let is_known = self.monitor.uplinks().any(|known| known.name == uplink);
        if is_known {
            self.forget_modems(client, now);
            self.modems.record(now, uplink.clone(), facts);
            self.apply_policy(client, &uplink);
        }
        Ok(json!({ "told": is_known }))
    }

    pub(super) fn forget_modems(&mut self, client: &mut Client, now: Instant) {
        for uplink in self.modems.forget(now) {
            // A hint for the start: measured round trips override it.
            client.set_rank(&uplink, self.rank_of(&uplink));
        }
    }

    pub(super) fn rank_of(&self, uplink: &str) -> u8 {
        let hardware = hardware(uplink);
        self.rank(&self.traits_of(uplink, &hardware))
    }

    pub(super) fn rank(&self, uplink: &UplinkTraits) -> u8 {
        rank(&self.options.file.uplinks, uplink, self.modems.of(uplink.name))
    }
}
