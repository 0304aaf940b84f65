//! Tests of what a machine may lack.

/// Whether a program that said `said` lacked what it names by `lack`: then the test says so and is
/// skipped, unless everything is to be there.
pub fn is_lacking(said: &str, lack: &str) -> bool {
    let lacks = said.contains(lack);
    if lacks {
        let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
        assert!(!required, "{said}");
        println!("skipped: {said}");
    }
    lacks
}
