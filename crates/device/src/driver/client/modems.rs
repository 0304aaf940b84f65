//! What modems tell, by the local socket.

use roadweave_types::Instant;
use serde_json::{Value, json};

use super::ClientRole;
use crate::driver::settings;
use crate::local::{RpcError, TellModem};

impl ClientRole {
    /// Keeps what was told of a modem, if its interface is an uplink.
    pub(super) fn tell_modem(&mut self, now: Instant, params: &Value) -> Result<Value, RpcError> {
        let TellModem { uplink, facts } = settings::parse(params)?;
        facts.check().map_err(RpcError::invalid_params)?;
        let is_told = self.monitor.uplinks().any(|known| known.name == uplink);
        if is_told {
            self.modems.tell(now, uplink, facts);
        }
        Ok(json!({ "told": is_told }))
    }
}
