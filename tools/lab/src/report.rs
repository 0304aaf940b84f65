//! Drawings and tables of HTML pages that need nothing else: no scripts, fonts or requests.
//!
//! Pure: equal data give equal bytes.

pub mod charts;
pub mod page;
pub mod strips;
mod svg;
pub mod timeline;
