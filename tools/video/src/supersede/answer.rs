//! The request and its responses: JSON-RPC 2.0, one message per line.

use serde::Deserialize;
use serde_json::json;

use super::Older;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupersedeAnswer {
    Done(u64),
    NoMethod,
    Refused(String),
}

pub fn question(older: Older, lane: &str) -> Vec<u8> {
    let Older { ssrc, timestamp, .. } = older;
    let params = json!({ "lane": lane, "ssrc": ssrc, "timestamp": timestamp });
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "supersede", "params": params });
    format!("{ask}\n").into_bytes()
}

impl SupersedeAnswer {
    pub fn parse(line: &[u8]) -> Self {
        match serde_json::from_slice(line) {
            Ok(RpcResponse { error: Some(RpcError { code: NO_METHOD, .. }), .. }) => Self::NoMethod,
            Ok(RpcResponse { error: Some(RpcError { message, .. }), .. }) => Self::Refused(message),
            Ok(RpcResponse { result: Some(Given { packets }), error: None }) => Self::Done(packets),
            _ => Self::none(),
        }
    }

    pub fn none() -> Self {
        Self::Refused("no answer".into())
    }
}

#[derive(Deserialize)]
struct RpcResponse {
    result: Option<Given>,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
struct Given {
    packets: u64,
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
    message: String,
}

/// JSON-RPC 2.0 section 5.1.
const NO_METHOD: i64 = -32601;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_a_line() {
        let older = Older { ssrc: 0x1234_5678, timestamp: 123_456, connection: 1 };
        let line = String::from_utf8(question(older, "real-time")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let params = json!({ "lane": "real-time", "ssrc": 305_419_896, "timestamp": 123_456 });
        let expected =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "supersede", "params": params });
        assert_eq!((value, line.find('\n')), (expected, Some(line.len() - 1)));
    }

    #[test]
    fn answers_are_understood_or_none() {
        let check =
            |line: &str, expected| assert_eq!(SupersedeAnswer::parse(line.as_bytes()), expected);
        check(r#"{"jsonrpc":"2.0","id":1,"result":{"packets":17}}"#, SupersedeAnswer::Done(17));
        check(r#"{"error":{"code":-32601,"message":"there is none"}}"#, SupersedeAnswer::NoMethod);
        check(r#"{"error":{"code":-32001,"message":"no"}}"#, SupersedeAnswer::Refused("no".into()));
        for none in ["", "{}", "[]", r#"{"result":{}}"#, r#"{"result":{"packets":-1}}"#] {
            check(none, SupersedeAnswer::none());
        }
    }
}
