//! A model of Linux's TCP without I/O, for applications inside and beside the tunnel.
//!
//! ```text
//! write ─► Socket ─ poll_transmit ─► Segment ─ IP packet ─► link or tunnel ─► handle_segment ─┐
//!            ├─ Sender:   Scoreboard ─► Rack, Recovery ─► Window ◄─ Cubic or Bbr              │
//!            └─ Receiver: data, delayed acknowledgements, SACK, window ◄──────────────────────┘
//! ```
//!
//! A `Socket` is one end. Payload bytes are all zero and only counted; segments have their real
//! sizes and headers. `fetch` runs two sockets over one emulated link. The model was compared with
//! the kernel (tools/experiments/tcp-model.md).
//!
//! Sources: RFC 9293 (TCP), 7323 (timestamps, windows), 2018 and 2883 (SACK), 6298 (timeouts), 8985
//! (RACK-TLP), 6937 and 9937 (PRR), 5682 (F-RTO), 3522 (Eifel), 9438 (CUBIC); hystart.rs, rate.rs
//! and bbr.rs name their own. Other constants are sysctls of Linux 6.18. Not modelled: ECN,
//! closing, restarts after idle time, a policer's long-term rate in BBR, autocorking.

mod bbr;
mod congestion;
mod cubic;
mod exchange;
mod fetch;
mod hystart;
mod rack;
mod rate;
mod receiver;
mod recovery;
mod rtt;
mod scoreboard;
mod segment;
mod sender;
mod socket;

pub(crate) use exchange::Exchange;
pub(crate) use fetch::fetch;
pub(crate) use socket::SocketConfig;
