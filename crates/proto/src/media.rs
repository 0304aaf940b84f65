//! Readers of the plain HTTP between players and hosts, as it passes by.
//!
//! ```text
//! player ─ requests ──► Requests ─► CMCD: play-time left; RFC 9218: what is urgent
//! player ◄─ responses ─ Responses ─► RFC 9218; FirstFrame: up to where the first picture goes
//! ```
//!
//! The readers get copies of bytes that were already forwarded, and change nothing. Bytes that they
//! do not understand end the reading of that connection, with a reason ([`Unread`]). Each keeps at
//! most [`HEAD_MAX`] bytes of an incomplete head, and a few numbers.
//!
//! Sources: RFC 9112, RFC 9218, CTA-5004, ISO/IEC 14496-12.

mod body;
mod cmcd;
mod mp4;
mod priority;
mod reader;
mod requests;
mod responses;

pub use cmcd::{Cmcd, player_of};
pub use mp4::{FRAME_MAX, FirstFrame, FrameEnd};
pub use reader::{FIELDS_MAX, HEAD_MAX, Unread};
pub use requests::{Request, Requests};
pub use responses::{ResponseMarks, Responses};

#[cfg(test)]
mod tests;
