//! Whole worlds in virtual time, and what a viewer sees of them.
//!
//! ```text
//! Scenario ─► run ─► TrafficWorld ─┬─ World: client ═ links ═ server    world.rs
//!                                  ├─ applications at both ends         traffic.rs, video/, tcp/
//!                                  └─ script, cross traffic             event.rs
//!              └─► RunOutcome: figures, delays, stalls, time line        run.rs, figures.rs
//! ```
//!
//! The lab runs the product's own `tunnel` on links of `emulate` with one virtual clock: minutes of
//! a drive take seconds, and equal scenarios have equal outcomes. It reads no clock, starts no
//! process and opens no socket.

#![allow(missing_docs, reason = "the tools alone use it: a name may say it all")]

pub mod applications;
pub mod bound;
mod call;
pub mod class;
pub mod closed_loop;
pub mod compare;
pub mod delays;
pub mod downloads;
pub mod drive_set;
pub mod event;
pub mod figures;
pub mod fleet;
pub mod histogram;
pub mod inner;
pub mod profiles;
pub mod raven;
pub mod report;
pub mod run;
pub mod scenario;
pub mod strategies;
mod tcp;
pub mod traffic;
pub mod video;
pub mod vod;
mod web;
pub mod world;
