//! What players and their hosts say in plain HTTP, read as it passes by.
//!
//! ```text
//! player ─ requests ──► Requests ─► CMCD: play-time left; RFC 9218: what is urgent
//! player ◄─ responses ─ Responses ─► RFC 9218; FirstFrame: up to where the first picture goes
//! ```
//!
//! Nobody waits for these readers, and they change nothing: they are shown copies of what was moved
//! already. What they do not understand ends the reading of that connection, with a reason
//! ([`Unread`]), and nothing else. Each keeps at most [`HEAD_MAX`] bytes of a head that is not
//! whole, and a few numbers.
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
pub use responses::{Responses, Seen};

#[cfg(test)]
mod tests;
