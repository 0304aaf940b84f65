//! Sign-in by a local browser, redirected to a port of this program (RFC 8252 section 7.3).

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde_json::json;

use crate::operator::client::{ApiClient, ApiResponse};
use crate::operator::show;

pub fn sign_in(client: &mut ApiClient) -> Result<ApiResponse> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
    let port = listener.local_addr()?.port();
    let body = json!({ "loopback_port": port });
    let begun = client.ask("POST", "/sessions/oidc", Some(&body), None)?;
    client.set_cookie(cookie(&begun, "__Host-roadweave-sign-in"));
    let url = show::at(&begun.body, "url");
    out::note(format_args!("open this in a browser on this machine:\n\n    {url}\n"));
    out::flush();
    let state = field(&url, "state").unwrap_or_default();
    let code = wait(&listener, &state)?;
    client.ask("POST", "/sessions/oidc/code", Some(&json!({ "code": code, "state": state })), None)
}

pub fn cookie(answer: &ApiResponse, name: &str) -> Option<String> {
    let all = answer.headers.get_all("set-cookie").iter().filter_map(|it| it.to_str().ok());
    let mut each = all.filter_map(|it| it.split(';').next());
    each.find(|it| it.split('=').next() == Some(name)).map(str::to_owned)
}

fn wait(listener: &TcpListener, state: &str) -> Result<String> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + SIGN_IN_MAX;
    while Instant::now() < end {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if let Some(said) = receive(stream, state) {
            return said.map_err(|why| BadInput::new(why).into());
        }
    }
    bail!("no sign-in within {} min", SIGN_IN_MAX.as_secs() / 60)
}

fn receive(mut stream: TcpStream, state: &str) -> Option<Result<String, String>> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(5))).ok()?;
    let (mut bytes, mut buffer, end) = (Vec::new(), [0; 1024], Instant::now() + REQUEST_TIME);
    while !bytes.windows(4).any(|it| it == b"\r\n\r\n") && bytes.len() < REQUEST_MAX {
        if Instant::now() > end {
            return None;
        }
        match stream.read(&mut buffer) {
            Ok(length) if length > 0 => bytes.extend_from_slice(&buffer[..length]),
            _ => return None,
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let path = text.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
    let said = path.filter(|path| path.starts_with("/callback?")).and_then(|path| {
        (field(path, "state")? == state).then(|| {
            match (field(path, "code"), field(path, "error")) {
                (Some(code), _) => Ok(code),
                (None, error) => {
                    let error = error.unwrap_or_default();
                    let shown: String =
                        error.chars().filter(|c| !c.is_control()).take(60).collect();
                    Err(format!("the issuer says: {shown}"))
                }
            }
        })
    });
    let (status, page) = match &said {
        Some(Ok(_)) => ("200 OK", "You may close this page and go back to the terminal.\n"),
        Some(Err(_)) => ("400 Bad Request", "The sign-in failed; the terminal shows why.\n"),
        None => ("404 Not Found", "There is nothing here.\n"),
    };
    let head = "content-type: text/plain; charset=utf-8\r\nconnection: close";
    let length = page.len();
    let answer = format!("HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {length}\r\n\r\n{page}");
    let _ = stream.write_all(answer.as_bytes());
    said
}

fn field(address: &str, name: &str) -> Option<String> {
    let (_, query) = address.split_once('?')?;
    let mut fields = form_urlencoded::parse(query.as_bytes());
    fields.find(|(field, _)| field == name).map(|(_, value)| value.into_owned())
}

const SIGN_IN_MAX: Duration = Duration::from_secs(300);
const REQUEST_MAX: usize = 16 * 1024;
/// The time limit of one request: others wait behind it.
const REQUEST_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(path: &str) -> (Option<Result<String, String>>, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut browser = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        browser.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
        let said = receive(listener.accept().unwrap().0, "a+b");
        let mut page = String::new();
        browser.read_to_string(&mut page).unwrap();
        (said, page)
    }

    #[test]
    fn a_code_with_this_sign_ins_state_is_taken_and_nothing_else() {
        let (said, page) = asks("/callback?code=4%2F0x&state=a%2Bb&scope=email");
        assert_eq!(said, Some(Ok("4/0x".to_owned())));
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("close this page"), "{page}");
        for path in ["/callback?code=1&state=other", "/callback?code=1", "/favicon.ico", "/"] {
            let (said, page) = asks(path);
            assert!(said.is_none() && page.starts_with("HTTP/1.1 404"), "{path}: {page}");
        }
        let (said, _) = asks("/callback?error=access_denied%1b%5b2J&state=a%2Bb");
        assert_eq!(said, Some(Err("the issuer says: access_denied[2J".to_owned())));
    }
}
