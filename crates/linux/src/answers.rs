//! Routes answers to connections that came in by an uplink back by that uplink, even while
//! everything else is in the tunnel; and accepts answers only where their connection went out.
//!
//! ```text
//! out by a side ──► mark the connection ──► its answers: from this side, or dropped
//! in by an uplink ─► mark the packet ──────────► sockets, echoes: the answer bears it ─┐
//!                 └► begun there? mark the connection ─► its answers: mark the packet ─┤
//!                                                rule 519 (crate::routes): mark ─► the uplink's table
//! ```
//!
//! So an operator's ssh, and a port that the box forwards to a camera, work before the first
//! session, during it and after a crash. Nothing else leaves in the clear: only answers of
//! connections that began beyond the uplink are marked, and the box's own rules let those in.
//!
//! While everything is refused, a connection needs its mark before its first answer is routed, so
//! sockets and echoes copy it (`tcp_fwmark_accept`, `fwmark_reflect`). The reverse path filter must
//! see that the uplink reaches the sender (`src_valid_mark`); rule 518 keeps packets marked for
//! that from the rule of the marks.
//!
//! The sides are the TUN, each uplink, and everything else. Hosts behind the box may answer for any
//! address, and all sides for connections older than this table until these send. Conntrack checks
//! no interface: else any network could inject answers. A TCP connection begins with its SYN; an
//! older one does not pass for one from outside. The rules are in `inet roadweave_NAME_answers`.

use std::collections::BTreeMap;

use roadweave_proto::{DropReason, Instant, Side, UplinkId};

use crate::apart::GROUP;
use crate::filter::{
    Chain, MaintainedTable, TableTurn, begin, count_and_drop, counter, counter_from, end,
    is_quotable, set_mark,
};
use crate::{DeviceError, Instance, Uplink, Waker, sysctl};

/// The marks of one client's uplinks. The kernel's table outlives it: `cleanup` removes it.
#[derive(Debug)]
pub struct Answers {
    instance: Instance,
    /// All interfaces that ever were uplinks, since one may return before it is noticed.
    uplinks: BTreeMap<String, Marked>,
    table: MaintainedTable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marked {
    id: UplinkId,
    index: u32,
}

impl Answers {
    /// Installs nothing yet; what an earlier run left is kept until the first uplink comes.
    pub fn new(instance: &Instance) -> Self {
        let table = MaintainedTable::new(instance.answers_table(), None);
        Self { instance: instance.clone(), uplinks: BTreeMap::new(), table }
    }

    /// Marks connections from an uplink, once [`Answers::are_ready`]; again for a new interface.
    pub fn add_uplink(&mut self, uplink: &Uplink) -> Result<(), DeviceError> {
        let marked = Marked { id: uplink.id, index: uplink.index };
        // A reused number belongs to this name now.
        self.uplinks.retain(|name, other| {
            other.index != marked.index || is_quotable(name) || *name == uplink.name
        });
        let before = self.uplinks.insert(uplink.name.clone(), marked);
        let marks = self.instance.marks();
        if before.is_none() && marks.answer(uplink.id).is_none() {
            tracing::warn!(
                uplink = uplink.name,
                "replies to connections that arrive over this uplink may leave over another: \
                 packet_marks = \"{:#x}\" has bits for only {} uplinks",
                marks.mask(),
                marks.uplinks_max()
            );
        }
        if before.is_none_or(|before| {
            before.id != marked.id || before != marked && !is_quotable(&uplink.name)
        }) {
            self.table.set_stale();
        }
        self.mend_settings().map(drop)
    }

    /// Whether the table covers all uplinks.
    pub fn are_ready(&self) -> bool {
        self.uplinks.is_empty() || self.table.is_in_place()
    }

    /// Sets the waker for [`Answers::turn`].
    pub fn set_waker(&mut self, waker: Waker) {
        self.table.set_waker(waker);
    }

    /// When [`Answers::turn`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.poll_timeout()
    }

    /// Keeps the table in place.
    pub fn turn(&mut self, now: Instant) -> TableTurn {
        let (instance, uplinks) = (&self.instance, &self.uplinks);
        self.table.turn(now, |counts| {
            let count = counts.get(&counter(DropReason::ForwardRefused)).copied();
            ruleset(instance, uplinks, count.unwrap_or_default())
        })
    }

    /// Restores the settings if another program changed them; returns whether it did.
    pub fn mend_settings(&self) -> Result<bool, DeviceError> {
        let valid =
            |name: &String| format!("net.ipv4.conf.{}.src_valid_mark", name.replace('.', "/"));
        let mut gone = false;
        if self.uplinks.is_empty() {
            return Ok(gone);
        }
        for key in self.uplinks.keys().map(valid).chain(REFLECTING.map(str::to_owned)) {
            // The key is missing for an absent interface, and without IPv6.
            if sysctl::read(&key).is_ok_and(|value| value != "1") {
                self.instance.settings().change(&key, "1")?;
                gone = true;
            }
        }
        Ok(gone)
    }
}

fn ruleset(instance: &Instance, uplinks: &BTreeMap<String, Marked>, count: u64) -> (String, usize) {
    let marks = instance.marks();
    let (mut marking, mut forwarding, mut answering) = (Vec::new(), Vec::new(), Vec::new());
    let outside = from_none_of(uplinks);
    for (name, Marked { id, index }) in uplinks {
        let Some((mark, mask)) = marks.answer(*id) else { continue };
        let from = match is_quotable(name) {
            true => format!("iifname \"{name}\""),
            false => format!("iif {index}"),
        };
        let set = |what: &str| set_mark(what, (mark, marks.above_mask()));
        let (mark_packet, mark_connection) = (set("meta mark"), set("ct mark"));
        let begun = format!("{from} ct direction original ct state new");
        let answer = format!("ct direction reply ct mark & {mask:#x} == {mark:#x} {mark_packet}");
        marking.push(format!("{from} {mark_packet}"));
        marking.push(format!("{begun} meta l4proto != tcp {mark_connection}"));
        marking.push(format!("{begun} tcp flags & (syn | ack) == syn {mark_connection}"));
        forwarding.push(format!("{outside} {answer}"));
        answering.push(answer);
    }
    let (judging, leaving) = sides(instance, uplinks);
    let arriving = [judging, marking, forwarding].concat();
    let text = begin(&instance.answers_table())
        + &counter_from(&counter(DropReason::ForwardRefused), count);
    let chains = [
        Chain::base("prerouting", "filter hook prerouting priority mangle", arriving),
        Chain::base("postrouting", "filter hook postrouting priority mangle", leaving),
        Chain::base("output", "route hook output priority mangle", answering),
    ];
    end(text, &chains)
}

fn sides(instance: &Instance, uplinks: &BTreeMap<String, Marked>) -> (Vec<String>, Vec<String>) {
    let (marks, mask) = (instance.marks(), instance.marks().above_mask());
    let tun = (format!("ifname \"{}\"", instance.name()), Side::Tun);
    let known = uplinks.iter().map(|(name, Marked { id, index })| match is_quotable(name) {
        true => (format!("ifname \"{name}\""), Side::Uplink(*id)),
        false => (format!("if {index}"), Side::Uplink(*id)),
    });
    let drop = count_and_drop(DropReason::ForwardRefused);
    let elsewhere = marks.side(Side::Elsewhere).unwrap_or_default();
    let ours = format!("{:#x}", marks.side_mask());
    let set = |mark: u32| set_mark("ct mark", (mark, mask));
    let mut judging = Vec::new();
    // Keeps marks of connections from beyond an uplink, and of other programs, such as anchors.
    let mut leaving = vec![
        format!("oifgroup {GROUP} return"),
        "ct direction reply return".to_owned(),
        format!("ct mark & {mask:#x} != 0 ct mark & {ours} != {elsewhere:#x} return"),
    ];
    for (interface, side) in [tun].into_iter().chain(known) {
        let Some(mark) = marks.side(side) else { continue };
        judging.push(format!(
            "i{interface} ct direction reply ct mark & {ours} == {elsewhere:#x} \
             ct mark & {mask:#x} != {mark:#x} {drop}"
        ));
        leaving.push(format!("o{interface} {} return", set(mark)));
    }
    leaving.push(set(elsewhere));
    (judging, leaving)
}

fn from_none_of(uplinks: &BTreeMap<String, Marked>) -> String {
    let (named, odd): (Vec<_>, Vec<_>) = uplinks.iter().partition(|(name, _)| is_quotable(name));
    let set = |side: &str, elements: Vec<String>| match elements.is_empty() {
        true => String::new(),
        false => format!("{side} != {{ {} }}", elements.join(", ")),
    };
    let named = named.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let odd = odd.iter().map(|(_, marked)| marked.index.to_string()).collect();
    [set("iifname", named), set("iif", odd)].join(" ").trim().to_owned()
}

const REFLECTING: [&str; 3] =
    ["net.ipv4.tcp_fwmark_accept", "net.ipv4.fwmark_reflect", "net.ipv6.fwmark_reflect"];

#[cfg(test)]
mod tests {
    use roadweave_proto::Marks;

    use super::*;
    use crate::golden::assert_golden;

    #[test]
    fn the_tables_are_in_their_golden_files() {
        let marked = |id, index| Marked { id: UplinkId(id), index };
        let uplinks = BTreeMap::from([
            ("wwan0".to_owned(), marked(2, 7)),
            ("w\" drop".to_owned(), marked(3, 8)),
            ("eth*".to_owned(), marked(4, 9)),
        ]);
        let instance = Instance::new("rw0").unwrap();
        let (text, rules) = ruleset(&instance, &uplinks, 7);
        assert_eq!(rules, 15 + 4 + 8, "{text}");
        assert_golden("nft-answers.txt", &text);
        let instance = instance.with_marks(Marks::within(0x00ff_0000).unwrap());
        let uplinks =
            BTreeMap::from([("a".to_owned(), marked(5, 7)), ("b".to_owned(), marked(6, 7))]);
        assert_golden("nft-answers-narrow-mask.txt", &ruleset(&instance, &uplinks, 0).0);
    }
}
