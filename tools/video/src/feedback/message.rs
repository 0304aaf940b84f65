//! The program's lines: JSON-RPC 2.0, one message a line.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::sizing::Target;

pub const SUBSCRIBE: &[u8] =
    concat!(r#"{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"topic":"encoder"}}"#, "\n")
        .as_bytes();

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelMessage {
    Subscribed,
    Lane(Said),
    Refused(String),
    Other,
    Bad,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub target: Option<Target>,
    /// Counts how often so much was queued on silent paths that the encoder should restart; starts
    /// from zero with the program. Older programs omit it.
    pub renewals: Option<u64>,
}

pub fn parse(line: &[u8], lane: &str) -> TunnelMessage {
    let Ok(line) = serde_json::from_slice::<RpcMessage>(line) else { return TunnelMessage::Bad };
    if let Some(error) = line.error {
        return TunnelMessage::Refused(error.message);
    }
    match (line.method.as_deref(), line.params) {
        (None, _) if line.result.is_some() => TunnelMessage::Subscribed,
        (Some("encoder"), Some(params)) => match serde_json::from_value::<Params>(params) {
            Ok(params) => TunnelMessage::Lane(
                params.lanes.get(lane).copied().flatten().map_or_else(Said::default, said),
            ),
            Err(_) => TunnelMessage::Bad,
        },
        (Some("encoder"), None) => TunnelMessage::Bad,
        _ => TunnelMessage::Other,
    }
}

fn said(lane: Lane) -> Said {
    let Lane { frame_bytes, bitrate_bps, renewals } = lane;
    let target = Target { frame_bytes, bitrate_bps };
    Said { target: (target != Target::default()).then_some(target), renewals }
}

#[derive(Deserialize)]
struct RpcMessage {
    method: Option<String>,
    params: Option<serde_json::Value>,
    result: Option<serde_json::Value>,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
struct RpcError {
    message: String,
}

#[derive(Deserialize)]
struct Params {
    lanes: BTreeMap<String, Option<Lane>>,
}

#[derive(Clone, Copy, Deserialize)]
struct Lane {
    frame_bytes: Option<u64>,
    bitrate_bps: Option<u64>,
    renewals: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_or_bad() {
        let check = |line: &str, expected: TunnelMessage| {
            assert_eq!(parse(line.as_bytes(), "real-time"), expected, "{line}");
        };
        let said = |frame_bytes, bitrate_bps, renewals| {
            let target = Some(Target { frame_bytes, bitrate_bps });
            TunnelMessage::Lane(Said { target, renewals })
        };
        let target = |frame_bytes, bitrate_bps| said(frame_bytes, bitrate_bps, None);
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{"topic":"encoder"}}"#,
            TunnelMessage::Subscribed,
        );
        let encoder =
            |lanes: &str| format!(r#"{{"jsonrpc":"2.0","method":"encoder","params":{lanes}}}"#);
        let line = r#"{"lanes":{"real-time":{"frame_bytes":41280,"bitrate_bps":9800000}}}"#;
        check(&encoder(line), target(Some(41_280), Some(9_800_000)));
        let line = r#"{"lanes":{"x":null,"real-time":{"frame_bytes":0,"more":[1]}},"at":7}"#;
        check(&encoder(line), target(Some(0), None));
        for none in [
            r#"{"lanes":{}}"#,
            r#"{"lanes":{"real-time":null}}"#,
            r#"{"lanes":{"real-time":{}}}"#,
            r#"{"lanes":{"other":{"frame_bytes":1}}}"#,
        ] {
            check(&encoder(none), TunnelMessage::Lane(Said::default()));
        }
        let line = r#"{"lanes":{"real-time":{"frame_bytes":1,"bitrate_bps":2,"renewals":3}}}"#;
        check(&encoder(line), said(Some(1), Some(2), Some(3)));
        let line = r#"{"lanes":{"real-time":{"renewals":18446744073709551615}}}"#;
        let alone = Said { target: None, renewals: Some(u64::MAX) };
        check(&encoder(line), TunnelMessage::Lane(alone));
        for bad in [
            "",
            "garbage",
            "[]",
            r#"{"method":"encoder"}"#,
            &encoder("[]"),
            &encoder("{}"),
            &encoder(r#"{"lanes":{"real-time":{"frame_bytes":-1}}}"#),
            &encoder(r#"{"lanes":{"real-time":{"frame_bytes":"many"}}}"#),
            &encoder(r#"{"lanes":{"real-time":{"frame_bytes":1,"renewals":-1}}}"#),
            &"[".repeat(10_000),
        ] {
            check(bad, TunnelMessage::Bad);
        }
        assert_eq!(parse(&[0xff, 0xfe], "real-time"), TunnelMessage::Bad);
        check(r#"{"method":"state","params":{}}"#, TunnelMessage::Other);
        check(
            r#"{"id":1,"error":{"code":-32601,"message":"no such method"}}"#,
            TunnelMessage::Refused("no such method".into()),
        );
    }
}
