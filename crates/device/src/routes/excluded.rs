//! What leaves outside the tunnel, as it would without the client, though it belongs into it.
//!
//! ```text
//! priority  rule                               table
//! 524       bears the mark of the excluded  -> on with 32766
//! 525       anything                        -> near:          excluded: pass by ─┐
//! 532       anything                        -> of the tunnel: excluded: pass by ─┴─► main
//! ```
//!
//! A route that passes by is as specific as what it excludes, so that the longest prefix decides
//! between it and what is led into the tunnel. All lies in the instance's own tables, and goes with
//! them; what has no way in the main table is refused by the kernel, as ever.
//!
//! Only the lower half of a mark can be said: the upper one is the instances' own
//! ([`crate::answers`]).

use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::plan::{METRIC_TUN, Plan, near_table, refusal};
use super::{PRIORITY_EXCLUDED, PRIORITY_MAIN_TABLE};
use crate::process::ROUTE_PROTOCOL;
use crate::{Route, Rule};

/// What a client's configuration keeps out of the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// Destinations.
    pub destinations: Vec<IpNet>,
    /// What the machine's own rules have marked: the bits, and the mask under which they count.
    pub mark: Option<(u32, u32)>,
}

impl Excluded {
    /// Adds what lets it pass by, in one family; `rest` is whether all else belongs into the
    /// tunnel.
    pub(super) fn plan(
        &self,
        plan: &mut Plan,
        ipv4: bool,
        tables: &RangeInclusive<u32>,
        rest: bool,
    ) {
        let destinations = self.destinations.iter().filter(|it| it.addr().is_ipv4() == ipv4);
        for destination in destinations {
            let whole = rest.then_some(*tables.start());
            for table in [Some(near_table(tables)), whole].into_iter().flatten() {
                let route = refusal(destination.trunc(), table, METRIC_TUN);
                plan.routes.insert(Route { passes_by: true, ..route });
            }
        }
        plan.rules.extend(self.mark.map(|mark| Rule {
            ipv4,
            priority: PRIORITY_EXCLUDED,
            mark: Some(mark),
            goto: Some(PRIORITY_MAIN_TABLE),
            table: *tables.start(),
            protocol: ROUTE_PROTOCOL,
            ..Rule::default()
        }));
    }
}
