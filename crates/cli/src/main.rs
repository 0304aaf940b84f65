//! The roadweave binary.

mod demo;

fn main() {}
