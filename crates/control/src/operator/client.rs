//! Requests to the controller, its refusals, and errors in words, as JSON and as exit codes.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, header};
use hyper_util::rt::TokioIo;
use roadweave_terminal::exit::{self, BadInput};
use roadweave_terminal::out;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::operator::account::{Account, host_and_port};
use crate::operator::trust;

pub struct ApiClient {
    account: Account,
    host: String,
    port: u16,
    tls: TlsConnector,
    runtime: tokio::runtime::Runtime,
}

pub struct ApiResponse {
    pub headers: HeaderMap,
    pub body: Value,
}

impl ApiResponse {
    fn etag(&self) -> Option<&str> {
        self.headers.get(header::ETAG).and_then(|etag| etag.to_str().ok())
    }
}

impl ApiClient {
    /// With a key and no tenant it asks the controller for the key's tenant.
    pub fn new(account: Account) -> Result<Self> {
        let mut client = Self::of_stranger(account)?;
        if client.account.tenant.is_empty() {
            let session = client.get("/sessions/current")?;
            client.account.tenant = session["tenant"].as_str().unwrap_or_default().to_owned();
        }
        Ok(client)
    }

    /// A client without a login; it sends no request.
    pub fn of_stranger(account: Account) -> Result<Self> {
        let (host, port) = host_and_port(&account.url)?;
        let tls = trust::tls(account.fingerprint.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { account, host, port, tls: TlsConnector::from(Arc::new(tls)), runtime })
    }

    pub fn set_cookie(&mut self, cookie: Option<String>) {
        self.account.cookie = cookie;
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        Ok(self.ask("GET", path, None, None)?.body)
    }

    pub fn list(&self, path: &str) -> Result<Vec<Value>> {
        let (mut all, mut next) = (Vec::new(), String::new());
        let mark = if path.contains('?') { '&' } else { '?' };
        loop {
            let page = self.get(&format!("{path}{mark}limit=500{next}"))?;
            all.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["next"].as_str() {
                Some(cursor) if all.len() < ITEMS_MAX => next = format!("&cursor={cursor}"),
                _ => return Ok(all),
            }
        }
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(self.ask("POST", path, Some(body), None)?.body)
    }

    pub fn find(&self, path: &str) -> Result<Option<Value>> {
        match self.get(path) {
            Err(error) if refused(&error) == Some(404) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Changes some settings and preserves concurrent changes of the others, with bounded retries.
    pub fn settle(&self, path: &str, change: impl Fn(&mut Value)) -> Result<Value> {
        settled(change, |method, body, etag| self.ask(method, path, body, etag))
    }

    pub fn remove(&self, path: &str) -> Result<Value> {
        let seen = self.ask("GET", path, None, None)?;
        Ok(self.ask("DELETE", path, None, seen.etag())?.body)
    }

    /// A path that does not begin with a slash is below the account's tenant.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<ApiResponse> {
        let work = async {
            let asked = self.exchange(method, path, body, etag);
            tokio::time::timeout(ANSWER_MAX, asked)
                .await
                .context("the controller does not answer")?
        };
        let (status, answer) = self.runtime.block_on(work)?;
        if status < 400 {
            return Ok(answer);
        }
        let refusal = ApiRefusal::new(status, answer.body);
        let is_login = self.account.cookie.as_deref().is_some_and(is_login);
        Err(match status == 401 && is_login {
            true => refusal.because("the login has expired: roadweave fleet login").into(),
            false => refusal.into(),
        })
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<(u16, ApiResponse)> {
        let place = format!("{}:{}", self.host, self.port);
        let below = format!("/tenants/{}/", self.account.tenant);
        let below = if path.starts_with('/') { "" } else { &*below };
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .with_context(|| format!("cannot reach {place}"))?;
        let name = ServerName::try_from(self.host.clone()).map_err(BadInput::new)?;
        let tls = self.tls.connect(name, stream).await;
        let tls = tls.with_context(|| match &self.account.fingerprint {
            Some(_) => format!("the controller at {place} has another fingerprint"),
            None => format!(
                "{place}: give its --fingerprint if no certificate authority signed its certificate"
            ),
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{below}{path}"))
            .header(header::HOST, &place);
        if let Some(key) = &self.account.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        } else if let Some(cookie) = &self.account.cookie {
            request = request.header(header::COOKIE, cookie);
        }
        if let Some(etag) = etag {
            request = request.header(header::IF_MATCH, etag);
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(serde_json::to_vec(body)?)
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes)).map_err(BadInput::new)?;
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, BODY_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("cannot read the answer: {error}"))?;
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        Ok((parts.status.as_u16(), ApiResponse { headers: parts.headers, body }))
    }
}

fn settled(
    change: impl Fn(&mut Value),
    ask: impl Fn(&str, Option<&Value>, Option<&str>) -> Result<ApiResponse>,
) -> Result<Value> {
    let mut tries = 1..=TRIES;
    loop {
        // Settings and version come from one answer, so that no change between is overwritten.
        let mut seen = ask("GET", None, None)?;
        let mut settings = seen.body["settings"].take();
        change(&mut settings);
        tries.next();
        match ask("PUT", Some(&settings), seen.etag()) {
            Err(error) if refused(&error) == Some(412) && !tries.is_empty() => {}
            other => return Ok(other?.body),
        }
    }
}

fn refused(error: &anyhow::Error) -> Option<u16> {
    error.downcast_ref::<ApiRefusal>().map(|it| it.status)
}

/// Attempts of one change: a roll-out, for example, changes by itself meanwhile.
const TRIES: u32 = 4;
const ANSWER_MAX: Duration = Duration::from_secs(20);
fn is_login(cookie: &str) -> bool {
    cookie.starts_with("__Host-roadweave=")
}

const BODY_MAX: usize = 32 << 20;
const ITEMS_MAX: usize = 100_000;

#[derive(Debug)]
pub struct ApiRefusal {
    pub status: u16,
    problem: Value,
}

impl ApiRefusal {
    pub fn new(status: u16, body: Value) -> Self {
        let problem = match body {
            Value::Object(_) => body,
            _ => json!({ "status": status, "detail": "no reason given" }),
        };
        Self { status, problem }
    }

    pub fn because(mut self, why: &str) -> Self {
        self.problem["detail"] = why.into();
        self
    }

    /// 1 if the same command may succeed later; 2 if it, or the caller, has to change.
    fn code(&self) -> u8 {
        match self.status {
            408 | 409 | 412 | 425 | 429 | 500.. => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.problem["detail"].as_str().unwrap_or("no reason given");
        let detail: String = detail.chars().filter(|c| !c.is_control()).collect();
        f.write_str(&detail)
    }
}

impl std::error::Error for ApiRefusal {}

/// Prints an error, with `json` as a problem on one line, and chooses the exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let refusal = error.downcast_ref::<ApiRefusal>();
    let usual = match json && !exit::is_reader_gone(error) {
        false => exit::report(error),
        true => {
            let problem = refusal.map_or_else(|| own(error), |it| it.problem.clone());
            out::note(problem);
            exit::code(error)
        }
    };
    refusal.map_or(usual, |refusal| ExitCode::from(refusal.code()))
}

fn own(error: &anyhow::Error) -> Value {
    let (kind, title) = match error.is::<BadInput>() {
        true => ("usage", "The command is wrong"),
        false => ("failed", "The command failed"),
    };
    let detail = format!("{error:#}");
    json!({
        "type": format!("urn:roadweave:problem:{kind}"),
        "title": title,
        "detail": detail.trim_end(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn what_is_written_is_of_the_version_that_was_seen_or_nothing_is() {
        for late in [0, 1, TRIES as usize] {
            let (version, all) = (Cell::new(0), RefCell::new(Vec::new()));
            let ask = |_: &str, body: Option<&Value>, etag: Option<&str>| {
                version.set(version.get() + 1);
                if let Some(body) = body {
                    let etag = etag.unwrap_or_default().to_owned();
                    all.borrow_mut().push((etag, format!("\"{}\"", body["from"])));
                    if all.borrow().len() <= late {
                        return Err(ApiRefusal::new(412, Value::Null).into());
                    }
                }
                let etag = format!("\"{}\"", version.get()).parse()?;
                let headers = HeaderMap::from_iter([(header::ETAG, etag)]);
                Ok(ApiResponse { headers, body: json!({ "settings": { "from": version.get() } }) })
            };
            let settled = settled(|settings| settings["tag"] = "tram".into(), ask);
            let status = settled.err().and_then(|error| refused(&error));
            assert_eq!(status, (late == TRIES as usize).then_some(412));
            let all = all.into_inner();
            assert_eq!(all.len(), late.min(TRIES as usize - 1) + 1);
            assert!(all.iter().all(|(etag, from)| etag == from), "{all:?}");
        }
    }

    #[test]
    fn a_refusal_cannot_steer_a_terminal() {
        let refusal = ApiRefusal::new(412, json!({ "detail": "\u{1b}[2Jit was changed" }));
        assert_eq!(refusal.to_string(), "[2Jit was changed");
    }

    #[test]
    fn an_address_is_https_with_a_port_or_443() {
        let of = |url: &str| host_and_port(url).ok();
        let place = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(of("https://fleet.example.org"), place("fleet.example.org", 443));
        assert_eq!(of("https://fleet.example.org:4400/"), place("fleet.example.org", 4400));
        assert_eq!(of("https://[2001:db8::1]:4400"), place("2001:db8::1", 4400));
        assert_eq!(of("https://[2001:db8::1]"), place("2001:db8::1", 443));
        for bad in ["http://x", "x:4400", "https://", "https://a/b", "https://u@h", "https://h:x"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
