//! The example of docs/ARCHITECTURE.md's reader: it must run, and not only build.

#[path = "../../examples/embed.rs"]
mod example;

#[test]
fn the_example_carries_a_packet_each_way() {
    example::main().expect("it runs to its end");
}
