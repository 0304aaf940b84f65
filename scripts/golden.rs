//! Golden files: texts that are checked in and compared whole, in `tests/golden` of each crate.

use std::fs;
use std::path::Path;

/// Checks that `text` equals the golden file `name`. With `ROADWEAVE_GOLDEN=write` it writes the
/// file first.
#[track_caller]
pub(crate) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("ROADWEAVE_GOLDEN").is_some_and(|word| word == "write") {
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(&path, text).expect("it can be written");
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let equal = known.lines().zip(text.lines()).take_while(|(known, now)| known == now).count();
    let line = |text: &str| text.lines().nth(equal).unwrap_or("(the end)").to_owned();
    assert!(
        known == text,
        "{}:{} differs\nfile: {}\nnow:  {}\nROADWEAVE_GOLDEN=write cargo test -p {} writes the file",
        path.display(),
        equal + 1,
        line(&known),
        line(text),
        env!("CARGO_PKG_NAME"),
    );
}
