//! Answers of HTTP/1.1, after which the connection is closed.

pub(crate) fn answer(status: u16, content_type: &str, fields: &str, content: &str) -> String {
    let (reason, length) = (reason(status), content.len());
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n\
         Content-Length: {length}\r\n{fields}Connection: close\r\n\r\n{content}"
    )
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Bad Request",
    }
}

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
