//! A small issuer: metadata, keys, and one ID token for each code.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::clock::now_ms;
use crate::keys;
use crate::store::tests::identity;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IssuerMode {
    Good,
    Gone,
    Silent,
    Endless,
    OtherName,
    Elsewhere,
}

#[derive(Clone)]
pub(super) struct Issuer(Arc<IssuerState>);

struct IssuerState {
    port: u16,
    mode: Mutex<IssuerMode>,
    key: AtomicU8,
    codes: Mutex<HashMap<String, Grant>>,
    peers: AtomicU8,
}

struct Grant {
    challenge: String,
    redirect: String,
    token: String,
}

impl Issuer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let issuer = Self(Arc::new(IssuerState {
            port,
            mode: Mutex::new(IssuerMode::Good),
            key: AtomicU8::new(50),
            codes: Mutex::default(),
            peers: AtomicU8::new(1),
        }));
        let here = issuer.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let here = here.clone();
                let service = service_fn(move |request| here.clone().answer(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        issuer
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    pub(super) fn shown(&self) -> u8 {
        self.0.key.load(Ordering::Relaxed)
    }

    /// A fresh client address, to stay below the rate limits.
    pub(super) fn peer(&self) -> String {
        format!("198.51.100.{}", self.0.peers.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn set(&self, mode: IssuerMode) {
        *self.0.mode.lock().unwrap() = mode;
    }

    pub(super) fn rotate(&self) {
        self.0.key.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn code(&self, url: &str, change: impl FnOnce(&mut Value)) -> String {
        assert_eq!(part(url, "client_id"), "roadweave");
        assert_eq!(part(url, "response_type"), "code");
        assert_eq!(part(url, "code_challenge_method"), "S256");
        assert!(part(url, "scope").split(' ').any(|scope| scope == "openid"));
        let key = self.shown();
        let mut claims = json!({
            "iss": self.url(),
            "sub": "anna",
            "aud": "roadweave",
            "exp": now_ms() / 1000 + 300,
            "iat": now_ms() / 1000,
            "nonce": part(url, "nonce"),
            "email": "anna@example.org",
            "email_verified": true,
            "groups": ["all", "ops", "none"],
            "alg": "EdDSA",
            "key": key,
            "kid": null,
        });
        change(&mut claims);
        let fields = claims.as_object_mut().unwrap();
        let alg = fields.remove("alg").unwrap();
        let key = fields.remove("key").unwrap().as_u64().unwrap();
        let kid = fields.remove("kid").unwrap().as_u64().unwrap_or(key);
        let grant = Grant {
            challenge: part(url, "code_challenge"),
            redirect: part(url, "redirect_uri"),
            token: token(&alg, (u8::try_from(key).unwrap(), kid), &claims),
        };
        let code = keys::identifier();
        self.0.codes.lock().unwrap().insert(code.clone(), grant);
        code
    }

    async fn answer(self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let mode = *self.0.mode.lock().unwrap();
        let path = request.uri().path().to_owned();
        let (status, answer) = match (mode, &*path) {
            (IssuerMode::Gone, _) => return Err(io::ErrorKind::ConnectionReset.into()),
            (IssuerMode::Silent, _) => return std::future::pending().await,
            (IssuerMode::Endless, _) => {
                let spaces = stream::repeat_with(|| Ok::<_, Infallible>(" ".repeat(4096)));
                return Ok(Response::new(Body::from_stream(spaces)));
            }
            (IssuerMode::Elsewhere, _) => (302, json!({})),
            (_, "/.well-known/openid-configuration") => (200, self.description(mode)),
            (_, "/keys") => (200, self.keys()),
            (_, "/token") => {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                self.redeem(&head.headers, &String::from_utf8_lossy(&body))
            }
            _ => (404, json!({})),
        };
        let text = answer.to_string();
        let location = format!("{}/keys", self.url());
        let answer = Response::builder().status(status).header("location", location);
        let answer = answer.header("content-type", "application/json");
        answer.body(Body::from(text)).map_err(io::Error::other)
    }

    fn description(&self, mode: IssuerMode) -> Value {
        let url = self.url();
        let name = if mode == IssuerMode::OtherName { "https://evil.test" } else { &url };
        json!({
            "issuer": name,
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "jwks_uri": format!("{url}/keys"),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["EdDSA"],
        })
    }

    fn keys(&self) -> Value {
        let key = self.shown();
        let public = identity(key).public_key();
        let x = URL_SAFE_NO_PAD.encode(public.as_bytes());
        let kid = key.to_string();
        json!({ "keys": [
            { "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": kid, "x": x },
        ] })
    }

    fn redeem(&self, head: &HeaderMap, body: &str) -> (u16, Value) {
        let basic = base64::engine::general_purpose::STANDARD.encode("roadweave:open+sesame");
        let is_known = head["authorization"] == format!("Basic {basic}");
        let at = |name: &str| part(&format!("?{body}"), name);
        let refused = (400, json!({ "error": "invalid_grant" }));
        let Some(grant) = self.0.codes.lock().unwrap().remove(&at("code")) else { return refused };
        let challenge = digest(&SHA256, at("code_verifier").as_bytes());
        let proves = URL_SAFE_NO_PAD.encode(challenge) == grant.challenge;
        if !is_known || !proves || at("redirect_uri") != grant.redirect {
            return refused;
        }
        let answer =
            json!({ "access_token": "x", "token_type": "Bearer", "id_token": grant.token });
        (200, answer)
    }
}

fn token(alg: &Value, (seed, kid): (u8, u64), claims: &Value) -> String {
    let head = json!({ "alg": alg, "typ": "JWT", "kid": kid.to_string() });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&head), part(claims));
    let signature = match alg.as_str() {
        Some("none") => Vec::new(),
        Some("HS256") => {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"open sesame");
            ring::hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
        }
        _ => identity(seed).sign(text.as_bytes()).as_bytes().to_vec(),
    };
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

pub(super) fn part(url: &str, name: &str) -> String {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut fields = form_urlencoded::parse(query.as_bytes());
    fields.find(|(field, _)| field == name).map(|(_, value)| value.into_owned()).unwrap_or_default()
}
