//! Answers of HTTP/1.1 that end the connection.

use crate::http;

pub(super) fn answer(status: u16, text: &str) -> Vec<u8> {
    answer_with(status, text, "")
}

/// As [`answer`], with further fields, each ending with CRLF.
pub(super) fn answer_with(status: u16, text: &str, fields: &str) -> Vec<u8> {
    let content = if text.is_empty() { String::new() } else { format!("{text}\n") };
    http::answer(status, http::TEXT, fields, &content).into_bytes()
}

pub(super) fn cross_origin(origin: Option<&str>, method: &str) -> String {
    origin.map_or_else(String::new, |origin| {
        format!(
            "Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n\
             Access-Control-Allow-Methods: {method}\r\nAccess-Control-Allow-Headers: Content-Type\r\n\
             Access-Control-Allow-Private-Network: true\r\n"
        )
    })
}
