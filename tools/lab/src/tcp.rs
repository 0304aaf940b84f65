//! A model of TCP as Linux has it, without I/O: what applications in and beside the tunnel use.
//!
//! ```text
//! write ─► Socket ─ poll_transmit ─► Segment ─ IP packet ─► link or tunnel ─► handle_segment ─┐
//!            ├─ Sender:   Scoreboard ─► Rack, Recovery ─► Window ◄─ Cubic or Bbr              │
//!            └─ Receiver: what came, delayed acknowledgements, SACK, window ◄─────────────────┘
//! ```
//!
//! A [`Socket`] is one end. Only the number of bytes is modelled: all are zero. Segments have their
//! real sizes and headers, so that a tunnel sees what it would see of a kernel.
//! [`fetch`](fetch::fetch) runs two sockets over one emulated link, which was compared with the
//! kernel (docs/experiments/tcp-model.md).
//!
//! Sources: RFC 9293 (TCP), 7323 (timestamps, windows), 2018 and 2883 (SACK), 6298 (timeouts), 8985
//! (RACK-TLP), 6937 and 9937 (PRR), 5682 (F-RTO), 3522 (Eifel), 9438 (CUBIC), Ha and Rhee's hybrid
//! slow start ("Taming the elephants", 2011), draft-cheng-iccrg-delivery-rate-estimation-02,
//! draft-cardwell-iccrg-bbr-congestion-control-00. Constants that no document gives are those that
//! Linux 6.18 shows as sysctls. Not modelled: ECN, closing, restarts after idle time, a policer's
//! long-term rate in BBR, segments that wait for their like before they leave.

mod bbr;
mod congestion;
mod cubic;
mod exchange;
pub mod fetch;
mod hystart;
mod rack;
mod rate;
mod receiver;
mod recovery;
mod rtt;
mod scoreboard;
pub mod segment;
mod sender;
mod socket;

pub use congestion::Algorithm;
pub use exchange::{Exchange, REQUEST};
pub use segment::Segment;
pub use socket::{Role, Socket, SocketConfig, SocketStats};
