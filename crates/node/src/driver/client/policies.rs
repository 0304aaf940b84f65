//! How uplinks are used, as the configuration, the overrides of the local socket and facts of
//! modems say.

use roadweave_config::{UplinkFields, UplinkTraits};
use roadweave_linux::hardware;
use roadweave_proto::Instant;
use roadweave_tunnel::{Client, UplinkPolicy};

use super::overrides::Overrides;
use crate::driver::technology::rank;
use crate::modem::Modems;

#[derive(Debug, Default)]
pub(super) struct UplinkPolicies {
    pub(super) overrides: Overrides,
    pub(super) modems: Modems,
}

impl UplinkPolicies {
    pub(super) fn have_caps(&self, fields: &UplinkFields) -> bool {
        self.overrides.have_caps()
            || fields.policies.iter().any(|policy| policy.to_policy().caps.are_there())
    }

    pub(super) fn apply(&self, client: &mut Client, fields: &UplinkFields, uplink: &str) {
        let hardware = hardware(uplink);
        let traits = self.traits(uplink, hardware.as_deref());
        let (account, policy) = match fields.policy_of(&traits) {
            Some(policy) => (policy.account(&traits), policy.to_policy()),
            None => (uplink.to_owned(), UplinkPolicy::default()),
        };
        client.set_account(uplink, account);
        client.set_policy(uplink, self.overrides.over(uplink, policy));
        client.set_rank(uplink, rank(fields, &traits, self.modems.of(uplink)));
    }

    pub(super) fn forget(&mut self, client: &mut Client, now: Instant, fields: &UplinkFields) {
        for uplink in self.modems.forget(now) {
            // A hint for the start: measured round trips override it.
            client.set_rank(&uplink, self.rank_of(fields, &uplink));
        }
    }

    pub(super) fn rank_of(&self, fields: &UplinkFields, uplink: &str) -> u8 {
        let hardware = hardware(uplink);
        rank(fields, &self.traits(uplink, hardware.as_deref()), self.modems.of(uplink))
    }

    pub(super) fn traits<'a>(&'a self, name: &'a str, device: Option<&'a str>) -> UplinkTraits<'a> {
        UplinkTraits { name, device, iccid: self.modems.iccid(name) }
    }
}
