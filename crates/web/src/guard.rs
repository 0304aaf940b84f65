//! Checks before every answer (Host, the page's origin, the token), and every answer's header. The
//! token is in a field that a page sets itself. What browsers add, such as a cookie, grants
//! nothing, so other pages cannot act for the crew. Origin and Sec-Fetch-Site are a second line.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use crate::names::Names;
use crate::token::Check;

pub(crate) type Answer = Response<Full<Bytes>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestRefusal {
    pub(crate) status: StatusCode,
    pub(crate) why: &'static str,
}

/// Fields of every answer: the page loads nothing foreign and runs in no frame.
const FIELDS: [(HeaderName, &str); 8] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), usb=()",
    ),
];

/// 421 for another name in Host, 400 without exactly one.
pub(crate) fn named(parts: &Parts, names: &Names) -> Result<(), RequestRefusal> {
    let bad = RequestRefusal { status: StatusCode::BAD_REQUEST, why: "one Host field is required" };
    let host = only(&parts.headers, &header::HOST).map_err(|()| bad)?.ok_or(bad)?;
    let of_target = parts.uri.authority().map(|authority| authority.as_str());
    match names.has(host) && of_target.is_none_or(|it| it.eq_ignore_ascii_case(host)) {
        true => Ok(()),
        false => Err(RequestRefusal {
            status: StatusCode::MISDIRECTED_REQUEST,
            why: "this host name is not allowed; add it with `roadweave web --host`",
        }),
    }
}

/// 403 for a request of another page, 401 without the token.
pub(crate) fn let_in(parts: &Parts, check: &Check) -> Result<(), RequestRefusal> {
    if is_foreign(parts) {
        return Err(RequestRefusal { status: StatusCode::FORBIDDEN, why: "sent by another page" });
    }
    let shown = only(&parts.headers, &header::AUTHORIZATION).ok().flatten();
    let token = shown.and_then(|shown| shown.strip_prefix("Bearer "));
    match token.is_some_and(|token| check.is_right(token.as_bytes())) {
        true => Ok(()),
        false => Err(RequestRefusal {
            status: StatusCode::UNAUTHORIZED,
            why: "the token is missing or incorrect",
        }),
    }
}

/// Whether the browser reports another page. Other programs send no such fields.
fn is_foreign(parts: &Parts) -> bool {
    let Parts { headers, method, .. } = parts;
    let site = only(headers, &HeaderName::from_static("sec-fetch-site"));
    let is_ours = |site: &str| site == "same-origin" || site == "none" && *method == Method::GET;
    let Ok(origin) = only(headers, &header::ORIGIN) else { return true };
    let host = only(headers, &header::HOST).ok().flatten().unwrap_or_default();
    let is_here = |origin: &str| {
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        of.is_some_and(|of| of.eq_ignore_ascii_case(host))
    };
    !site.is_ok_and(|site| site.is_none_or(is_ours)) || !origin.is_none_or(is_here)
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut all = headers.get_all(name).iter();
    let first = all.next();
    match all.next() {
        Some(_) => Err(()),
        None => first.map(|value| value.to_str().map_err(|_| ())).transpose(),
    }
}

pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in FIELDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::token::Token;

    fn parts(method: &str, target: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn a_page_whose_name_was_made_to_lead_here_gets_nothing() {
        let names = Names::new("127.0.0.1".parse().expect("an address"), &[]).expect("names");
        let check = |target: &str, hosts: &[&str], expected: Option<u16>| {
            let fields: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            let found = named(&parts("GET", target, &fields), &names);
            assert_eq!(found.err().map(|it| it.status.as_u16()), expected, "{target} {hosts:?}");
        };
        check("/", &["127.0.0.1:808"], None);
        check("/", &["evil.example:808"], Some(421));
        check("/", &[], Some(400));
        check("/", &["127.0.0.1", "evil.example"], Some(400));
        check("http://evil.example/", &["127.0.0.1"], Some(421));
        check("http://127.0.0.1/", &["127.0.0.1"], None);
    }

    #[test]
    fn the_token_lets_in_and_another_page_stays_out_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = Token::read_or_make(&folder.path().join("token")).expect("made");
        let address = token.address("").to_string();
        let right = format!("Bearer {}", address.split('=').nth(1).expect("a token"));
        let judge = Check::new(&token).expect("random bytes");
        let check = |method: &str, fields: &[(&str, &str)], expected: Option<u16>| {
            let host = [("host", "127.0.0.1:808")];
            let parts = parts(method, "/api/v1/state", &[&host[..], fields].concat());
            let found = let_in(&parts, &judge).err().map(|it| it.status.as_u16());
            assert_eq!(found, expected, "{method} {fields:?}");
        };
        let token = ("authorization", right.as_str());
        check("GET", &[token], None);
        check("POST", &[token], None);
        check("GET", &[], Some(401));
        check("GET", &[("authorization", "Bearer ")], Some(401));
        check("GET", &[("authorization", "Bearer x"), token], Some(401));
        check("GET", &[("cookie", right.as_str())], Some(401));
        for ours in ["http://127.0.0.1:808", "https://127.0.0.1:808"] {
            check("POST", &[token, ("origin", ours)], None);
        }
        for foreign in ["null", "http://127.0.0.1:809", "http://127.0.0.1", "http://evil.example"] {
            check("POST", &[token, ("origin", foreign)], Some(403));
        }
        check("POST", &[token, ("sec-fetch-site", "same-origin")], None);
        check("GET", &[token, ("sec-fetch-site", "none")], None);
        check("POST", &[token, ("sec-fetch-site", "none")], Some(403));
        for foreign in ["cross-site", "same-site", "", "SAME-ORIGIN"] {
            check("POST", &[token, ("sec-fetch-site", foreign)], Some(403));
            check("GET", &[token, ("sec-fetch-site", foreign)], Some(403));
        }
    }
}
