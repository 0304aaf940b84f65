//! Why a packet was discarded: nothing is lost silently.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a packet was discarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum DropReason {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
        }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name that statistics use.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drop_reasons! {
    /// The sending queue of a lane was full, in bytes.
    QueueFull = "queue-full",
    /// The packet waited longer than its lane lets a packet wait.
    QueueExpired = "queue-expired",
    /// The packet's video frame was given up, because there is more than the paths carry.
    FrameShed = "frame-shed",
    /// The packet's video has begun anew with a later frame, and waits for it no more: it waited,
    /// or was under way and may arrive all the same.
    Superseded = "superseded",
    /// The packet was lost, and the time for a repair was over.
    RepairExpired = "repair-expired",
    /// A copy or a repair that still waited for its path when its packet had been acknowledged, or
    /// superseded.
    CopyCancelled = "copy-cancelled",
    /// A copy that never left: its path is gone or takes no more, or it had waited too long.
    CopyUnsent = "copy-unsent",
    /// There is no session that the packet could go to.
    NoSession = "no-session",
    /// The packet came to another shard of the server than its own, which had no room for it.
    ShardFull = "shard-full",
    /// The packet came by, or is for, an attachment that is none: the client is at another proxy.
    Unbound = "unbound",
    /// The leg between proxy and anchor that the packet should have taken is away.
    LegAway = "leg-away",
    /// The packet came from an address that is none of the peer's.
    UnknownPeer = "unknown-peer",
    /// The inner packet's source address is not one of the sender's.
    SpoofedSource = "spoofed-source",
    /// The inner packet speaks for a link, which a tunnel is not: neighbour discovery of IPv6,
    /// router advertisements among it, or a link-local source address.
    LinkLocal = "link-local",
    /// The inner packet's destination belongs to no session, or to a client that may not be reached
    /// from here.
    NoRoute = "no-route",
    /// The packet filters forward nothing from where the packet came to where it would go.
    ForwardRefused = "forward-refused",
    /// The packet was for an inner address of this machine, or one that the interface it came in by
    /// does not have, and came in beside the tunnel.
    InnerFromOutside = "inner-from-outside",
    /// The inner packet's destination is none that clients may reach through this server.
    DeniedDestination = "denied-destination",
    /// The packet would have begun a connection, and its source has as many as it may have, or
    /// begins them too fast.
    ConnectionShare = "connection-share",
    /// The packet was a fragment, and its source sends more of them than the kernel has room for.
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
    /// The packet came after those that follow it, in a lane that promises their order.
    OutOfOrder = "out-of-order",
    /// The packet came older than its lane lets one become, or became so while it waited for its
    /// turn.
    ArrivedExpired = "arrived-expired",
    /// A packet ID too far ahead of the lane's newest to be believed.
    IdJump = "id-jump",
    /// The receiving side's memory for equations or fragments was full.
    ReceiveMemory = "receive-memory",
    /// The packet was the oldest of a client that held its whole share of the memory.
    MemoryShare = "memory-share",
    /// The packet was more than the client's rate allows.
    RateLimited = "rate-limited",
    /// Load of a speed test that nobody has asked for, or more of it than was agreed.
    UnaskedLoad = "unasked-load",
    /// An equation that contradicts what is known.
    Inconsistent = "inconsistent",
    /// A fragment whose siblings never came.
    IncompleteFragments = "incomplete-fragments",
    /// The TUN device's queue would not take the packet.
    DeviceFull = "device-full",
    /// The system call that should have sent the datagram failed.
    SendFailed = "send-failed",
    /// A link's queue was full.
    LinkQueueFull = "link-queue-full",
    /// A link lost the packet.
    LinkLoss = "link-loss",
}

/// How often each [`DropReason`] struck, in packets.
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

    /// The reasons that struck at least once, in the order of [`DropReason::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.0.iter().map(|(reason, packets)| (*reason, *packets))
    }
}
