//! Why a packet was discarded: nothing is lost silently.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

crate::named! {
    /// Why a packet was discarded.
    #[derive(Hash)]
    DropReason {
        /// The sending queue of a lane was full, in bytes.
        QueueFull = "queue-full",
        /// The packet waited longer than its lane lets a packet wait.
        QueueExpired = "queue-expired",
        /// The packet's video frame was given up, because there is more than the paths carry.
        FrameShed = "frame-shed",
        /// The packet's video has started again with a later frame; the packet waited, or was under
        /// way and may still arrive.
        Superseded = "superseded",
        /// The packet was lost, and the time for a repair was over.
        RepairExpired = "repair-expired",
        /// A waiting copy or repair of a packet that was acknowledged or superseded.
        CopyCancelled = "copy-cancelled",
        /// A copy that never left: its path is gone or full, or it waited too long.
        CopyUnsent = "copy-unsent",
        /// No session for the packet.
        NoSession = "no-session",
        /// The packet came to a shard of the server that was not its own, which had no room for it.
        ShardFull = "shard-full",
        /// The packet came by, or is for, an unknown attachment: the client is at another proxy.
        Unbound = "unbound",
        /// The leg between proxy and anchor for the packet is down.
        LegAway = "leg-away",
        /// The packet came from an address that is not the peer's.
        UnknownPeer = "unknown-peer",
        /// The inner packet's source address is not one of the sender's.
        SpoofedSource = "spoofed-source",
        /// The inner packet is valid on a link only, and a tunnel is no link: IPv6 neighbour
        /// discovery with router advertisements, or a link-local source address.
        LinkLocal = "link-local",
        /// The inner packet's destination has no session, or is a client that the sender may not
        /// reach.
        NoRoute = "no-route",
        /// The packet filters forward nothing on this way.
        ForwardRefused = "forward-refused",
        /// The packet came in beside the tunnel, for an inner address of this machine or one that
        /// its interface does not have.
        InnerFromOutside = "inner-from-outside",
        /// The inner packet's destination is denied to clients of this server.
        DeniedDestination = "denied-destination",
        /// The packet would begin a connection, and its source has too many or begins them too
        /// fast.
        ConnectionShare = "connection-share",
        /// The packet was a fragment, and its source sends more than its share of them.
        FragmentShare = "fragment-share",
        /// An inner packet that is neither IPv4 nor IPv6, or shorter than its header says.
        MalformedInner = "malformed-inner",
        /// An inner packet larger than the tunnel carries.
        OversizedInner = "oversized-inner",
        /// A message from the peer that breaks the format of docs/wire.md.
        MalformedMessage = "malformed-message",
        /// A message of a kind or for a lane that this side does not know.
        UnknownMessage = "unknown-message",
        /// A copy of a packet that was delivered before.
        Duplicate = "duplicate",
        /// A packet or equation too old to be of use.
        Late = "late",
        /// The packet came after its successors, in a lane that keeps order.
        OutOfOrder = "out-of-order",
        /// The packet was older than its lane allows on arrival, or became so while it waited.
        ArrivedExpired = "arrived-expired",
        /// An implausible packet ID, too far ahead of the lane's newest.
        IdJump = "id-jump",
        /// The receiving side's memory for equations or fragments was full.
        ReceiveMemory = "receive-memory",
        /// The packet was the oldest of a client that used its whole share of the memory.
        MemoryShare = "memory-share",
        /// The packet exceeded the client's rate.
        RateLimited = "rate-limited",
        /// Load of a speed test that was not requested, or more than agreed.
        UnaskedLoad = "unasked-load",
        /// An equation that contradicts known ones.
        Inconsistent = "inconsistent",
        /// A fragment whose siblings never arrived.
        IncompleteFragments = "incomplete-fragments",
        /// The TUN device's queue was full.
        DeviceFull = "device-full",
        /// The system call that should have sent the datagram failed.
        SendFailed = "send-failed",
        /// A link's queue was full.
        LinkQueueFull = "link-queue-full",
        /// A link lost the packet.
        LinkLoss = "link-loss",
    }
}

/// Packets discarded, by [`DropReason`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DropCounters(BTreeMap<DropReason, u64>);

impl DropCounters {
    /// Counts `packets` packets.
    #[inline]
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        if packets > 0 {
            *self.0.entry(reason).or_default() += packets;
        }
    }

    /// Counts one packet.
    pub fn count(&mut self, reason: DropReason) {
        self.add(reason, 1);
    }

    /// Packets discarded for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0.get(&reason).copied().unwrap_or(0)
    }

    /// Packets discarded for any reason.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds the counters of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (reason, packets) in &other.0 {
            self.add(*reason, *packets);
        }
    }

    /// The reasons with packets, in the order of [`DropReason::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.0.iter().map(|(reason, packets)| (*reason, *packets))
    }
}
