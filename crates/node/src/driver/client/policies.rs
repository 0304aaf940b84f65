//! How uplinks are used: by the configuration, by settings of the local socket, which override it,
//! and by facts of modems.

use roadweave_config::{UplinkFields, UplinkTraits};
use roadweave_linux::hardware;
use roadweave_proto::Instant;
use roadweave_tunnel::{Client, UplinkPolicy};

use super::overrides::Overrides;
use crate::driver::technology::rank;
use crate::modem::{ModemFacts, Modems};

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
        let traits = self.traits_of(uplink, hardware.as_deref());
        let (account, policy) = match fields.policy_of(&traits) {
            Some(policy) => (policy.account(&traits), policy.to_policy()),
            None => (uplink.to_owned(), UplinkPolicy::default()),
        };
        client.set_account(uplink, account);
        client.set_policy(uplink, self.overrides.over(uplink, policy));
        client.set_rank(uplink, self.rank(fields, &traits));
    }

    pub(super) fn record_modem(
        &mut self,
        client: &mut Client,
        now: Instant,
        fields: &UplinkFields,
        (uplink, facts): (String, ModemFacts),
    ) {
        self.forget_modems(client, now, fields);
        self.modems.record(now, uplink.clone(), facts);
        self.apply(client, fields, &uplink);
    }

    pub(super) fn forget_modems(
        &mut self,
        client: &mut Client,
        now: Instant,
        fields: &UplinkFields,
    ) {
        for uplink in self.modems.forget(now) {
            // A hint for the start: measured round trips override it.
            client.set_rank(&uplink, self.rank_of(fields, &uplink));
        }
    }

    pub(super) fn rank_of(&self, fields: &UplinkFields, uplink: &str) -> u8 {
        let hardware = hardware(uplink);
        self.rank(fields, &self.traits_of(uplink, hardware.as_deref()))
    }

    fn rank(&self, fields: &UplinkFields, uplink: &UplinkTraits) -> u8 {
        rank(fields, uplink, self.modems.of(uplink.name))
    }

    pub(super) fn traits_of<'a>(
        &'a self,
        name: &'a str,
        device: Option<&'a str>,
    ) -> UplinkTraits<'a> {
        UplinkTraits { name, device, iccid: self.modems.iccid(name) }
    }
}
