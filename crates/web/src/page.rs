//! The page's files, compiled in if they were built before (`make web`).

use hyper::StatusCode;
use hyper::body::Bytes;

use crate::guard::{Answer, answer};

include!(concat!(env!("OUT_DIR"), "/files.rs"));

const UNBUILT: &[u8] = b"<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>roadweave web</title>
<h1>The page is not in this program</h1>
<p>It was built without Node. In the sources, with npm: <code>make web</code>, then
<code>cargo build --package roadweave-web</code>.</p>
<p>The interface at <code>/api/v1/state</code> answers all the same.</p>
</html>
";

pub(crate) fn file(path: &str) -> Option<Answer> {
    if path == "/" && FILES.is_empty() {
        let html = "text/html; charset=utf-8";
        return Some(answer(StatusCode::OK, html, Bytes::from_static(UNBUILT)));
    }
    let name = if path == "/" { "index.html" } else { path.strip_prefix('/')? };
    let (_, content_type, bytes) = FILES.iter().find(|(known, ..)| *known == name)?;
    Some(answer(StatusCode::OK, content_type, Bytes::from_static(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_and_nothing_beside_its_files() {
        assert!(file("/").is_some());
        for path in ["", "//", "/..", "/../Cargo.toml", "/etc/passwd", "/index.htm"] {
            assert!(file(path).is_none(), "{path}");
        }
    }
}
