//! The roadweave binary.
fn main() {}
