//! Whole worlds in virtual time, and what a viewer saw of them.

pub mod figures;
pub mod video;
