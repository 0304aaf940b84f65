//! Puts the built page (`make web`) into the program as a table of its files with their types.
//! Without a built page the table is empty, and the program shows how to build it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let built = root.join("page/dist");
    println!("cargo::rerun-if-changed=page/dist");
    let mut files = Vec::new();
    if built.join("index.html").is_file() {
        let entries = fs::read_dir(&built).expect("it can be read").flatten();
        files.extend(entries.map(|entry| entry.path()).filter(|path| content_type(path).is_some()));
    }
    files.sort();
    let mut table = "pub(crate) static FILES: &[(&str, &str, &[u8])] = &[\n".to_owned();
    for path in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
        let kind = content_type(path).expect("it was asked before");
        writeln!(table, "    ({name:?}, {kind:?}, include_bytes!({path:?})),").expect("memory");
    }
    table += "];\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("files.rs"), table).expect("it can be written");
}

/// `None` for files that are not part of the page.
fn content_type(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()? {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        "webmanifest" => "application/manifest+json",
        _ => return None,
    })
}
