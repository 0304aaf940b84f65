//! Answers what came in by an uplink by that uplink, also while everything else is in the tunnel;
//! and lets answers in only where their connection went out.
//!
//! ```text
//! out by a side ──► mark the connection ──► its answers: from this side, or dropped
//! in by an uplink ─► mark the packet ──────────► sockets, echoes: the answer bears it ─┐
//!                 └► begun there? mark the connection ─► its answers: mark the packet ─┤
//!                                                rule 519 (crate::routes): mark ─► the uplink's table
//! ```
//!
//! So an operator's ssh from anywhere, and a port that the box's own rules forward to a camera,
//! work before the first session, during it and after a crash. Nothing else gets out: only answers
//! of connections that began beyond the uplink are marked, and what is marked was let in by the
//! box's own rules.
//!
//! While all is refused, a connection needs its mark before its first answer is routed, so sockets
//! and echoes take it over from the packet (`tcp_fwmark_accept`, `fwmark_reflect`). And the reverse
//! path filter must see that the sender is reached by the uplink (`src_valid_mark`); what comes in
//! and is marked for that alone passes the rule of the marks by (518).
//!
//! The sides are the TUN, each uplink, and all else. What is behind the box is trusted to write
//! answers, and so is everybody about a connection that was there before this table came, until it
//! sends something. Without this an answer in another's name, or an error about a connection, is
//! let in from any network, since conntrack asks for no interface.
//!
//! A TCP connection begins with its SYN: one that was there before this table came is not taken for
//! one that began outside. All lies in a table of our own, `inet roadweave_NAME_answers`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use roadweave_proto::{DropReason, Instant, Side, UplinkId};

use crate::apart::GROUP;
use crate::filter::{KeptTable, Turn, count_and_drop, counter, is_quotable};
use crate::{DeviceError, Instance, Uplink, Waker, sysctl};

/// The marks of one client's uplinks. They outlive it: `cleanup` removes them.
#[derive(Debug)]
pub struct Answers {
    instance: Instance,
    /// All that were uplinks at any time: one may come back before it is noticed.
    uplinks: BTreeMap<String, Marked>,
    table: KeptTable,
}

/// What is marked by which uplink's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marked {
    id: UplinkId,
    /// The kernel's number of its interface, for names that nft cannot read.
    index: u32,
}

impl Answers {
    /// No answers are led yet; what an earlier run left is kept until the first uplink comes.
    pub fn new(instance: &Instance) -> Self {
        let table = KeptTable::new(instance.answers_table(), None);
        Self { instance: instance.clone(), uplinks: BTreeMap::new(), table }
    }

    /// Marks what comes in by an uplink, once [`Answers::are_ready`]. Call it again when the uplink
    /// is a new interface.
    pub fn add_uplink(&mut self, uplink: &Uplink) -> Result<(), DeviceError> {
        let marked = Marked { id: uplink.id, index: uplink.index };
        // A number that stood for another name stands for this one now.
        self.uplinks.retain(|name, other| {
            other.index != marked.index || is_quotable(name) || *name == uplink.name
        });
        let before = self.uplinks.insert(uplink.name.clone(), marked);
        let marks = self.instance.marks();
        if before.is_none() && marks.answer(uplink.id).is_none() {
            tracing::warn!(
                uplink = uplink.name,
                "connections that come in by this uplink may be answered by another: packet_marks \
                 = \"{:#x}\" has bits for {} uplinks only",
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

    /// Whether the table knows all uplinks.
    pub fn are_ready(&self) -> bool {
        self.uplinks.is_empty() || self.table.is_in_place()
    }

    /// `waker` wakes for [`Answers::turn`] from now on.
    pub fn set_waker(&mut self, waker: Waker) {
        self.table.set_waker(waker);
    }

    /// When [`Answers::turn`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.poll_timeout()
    }

    /// Keeps the table in place.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let (instance, uplinks) = (&self.instance, &self.uplinks);
        self.table.turn(now, |counts| {
            let count = counts.get(&counter(DropReason::ForwardRefused)).copied();
            ruleset(instance, uplinks, count.unwrap_or_default())
        })
    }

    /// Looks whether the settings are still as they were, and sets them again if not; returns
    /// whether they were not.
    pub fn mend_settings(&self) -> Result<bool, DeviceError> {
        let valid =
            |name: &String| format!("net.ipv4.conf.{}.src_valid_mark", name.replace('.', "/"));
        let mut gone = false;
        // They are set for the first uplink.
        if self.uplinks.is_empty() {
            return Ok(gone);
        }
        for key in self.uplinks.keys().map(valid).chain(REFLECTING.map(str::to_owned)) {
            // An interface that is away has none, and a kernel without IPv6 none of its own.
            if sysctl::read(&key).is_ok_and(|value| value != "1") {
                self.instance.change_setting(&key, "1")?;
                gone = true;
            }
        }
        Ok(gone)
    }
}

/// The text of the table, whose counter begins with `count`, and how many rules it has.
fn ruleset(instance: &Instance, uplinks: &BTreeMap<String, Marked>, count: u64) -> (String, usize) {
    let (table, marks) = (instance.answers_table(), instance.marks());
    let keep = !marks.above_mask();
    let (mut marking, mut answering) = (String::new(), String::new());
    let outside = from_none_of(uplinks);
    let mut forwarding = String::new();
    for (name, Marked { id, index }) in uplinks {
        let Some((mark, mask)) = marks.answer(*id) else { continue };
        let from = match is_quotable(name) {
            true => format!("iifname \"{name}\""),
            false => format!("iif {index}"),
        };
        let set = |what: &str| format!("{what} set {what} & {keep:#x} | {mark:#x}");
        let (mark_packet, mark_connection) = (set("meta mark"), set("ct mark"));
        let begun = format!("{from} ct direction original ct state new");
        let answer = format!("ct direction reply ct mark & {mask:#x} == {mark:#x} {mark_packet}");
        let _ = writeln!(marking, "    {from} {mark_packet}");
        let _ = writeln!(marking, "    {begun} meta l4proto != tcp {mark_connection}");
        let _ = writeln!(marking, "    {begun} tcp flags & (syn | ack) == syn {mark_connection}");
        let _ = writeln!(forwarding, "    {outside} {answer}");
        let _ = writeln!(answering, "    {answer}");
    }
    let (judging, leaving) = sides(instance, uplinks);
    let counter = counter(DropReason::ForwardRefused);
    let rules = [&judging, &marking, &forwarding, &answering, &leaving];
    let rules = rules.map(|rules| rules.lines().count());
    let text = format!(
        "add table inet {table}\n\
         delete table inet {table}\n\
         table inet {table} {{\n  \
           counter {counter} {{ packets {count} bytes 0 }}\n  \
           chain prerouting {{\n    \
             type filter hook prerouting priority mangle; policy accept;\n\
         {judging}{marking}{forwarding}  }}\n  \
           chain postrouting {{\n    \
             type filter hook postrouting priority mangle; policy accept;\n\
         {leaving}  }}\n  \
           chain output {{\n    \
             type route hook output priority mangle; policy accept;\n\
         {answering}  }}\n\
         }}\n"
    );
    (text, rules.iter().sum())
}

/// The rules that judge by which side an answer comes in, and those that note by which side a
/// connection went out last.
fn sides(instance: &Instance, uplinks: &BTreeMap<String, Marked>) -> (String, String) {
    let (marks, mask) = (instance.marks(), instance.marks().above_mask());
    let tun = (format!("ifname \"{}\"", instance.name()), Side::Tun);
    let known = uplinks.iter().map(|(name, Marked { id, index })| match is_quotable(name) {
        true => (format!("ifname \"{name}\""), Side::Uplink(*id)),
        false => (format!("if {index}"), Side::Uplink(*id)),
    });
    let drop = count_and_drop(DropReason::ForwardRefused);
    let elsewhere = marks.side(Side::Elsewhere).unwrap_or_default();
    let ours = format!("{:#x}", marks.side_mask());
    let set = |mark: u32| format!("ct mark set ct mark & {:#x} | {mark:#x}", !mask);
    let mut judging = String::new();
    // Marks of what began beyond an uplink, and those of others, stay; into the TUN of an anchor on
    // this machine that anchor marks.
    let mut leaving = format!(
        "    oifgroup {GROUP} return\n    \
             ct direction reply return\n    \
             ct mark & {mask:#x} != 0 ct mark & {ours} != {elsewhere:#x} return\n"
    );
    for (interface, side) in [tun].into_iter().chain(known) {
        let Some(mark) = marks.side(side) else { continue };
        let _ = writeln!(
            judging,
            "    i{interface} ct direction reply ct mark & {ours} == {elsewhere:#x} \
             ct mark & {mask:#x} != {mark:#x} {drop}"
        );
        let _ = writeln!(leaving, "    o{interface} {} return", set(mark));
    }
    let _ = writeln!(leaving, "    {}", set(elsewhere));
    (judging, leaving)
}

/// Matches what came in by none of the uplinks.
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

/// What lets answers bear the mark of what they answer.
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
        // Of a narrow mask only its bits are set and read, and there is no number for the second.
        let instance = instance.with_marks(Marks::within(0x00ff_0000).unwrap());
        let uplinks =
            BTreeMap::from([("a".to_owned(), marked(5, 7)), ("b".to_owned(), marked(6, 7))]);
        assert_golden("nft-answers-narrow-mask.txt", &ruleset(&instance, &uplinks, 0).0);
    }
}
