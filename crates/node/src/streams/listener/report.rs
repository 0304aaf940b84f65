//! Reports of players in the LAN about their buffers: `POST /v1/qoe`, JSON or CMCD (CTA-5004).
//!
//! ```text
//! application/json   {"player":1,"qoe":{"cached_bytes":0,"cached_frames":90,"bps":0,"fps":30}}
//! application/cmcd   a report a line: e=t,bl=2300,sid="6e2fb550",ts=1764000000000,v=2
//! ```
//!
//! Both content types need a CORS preflight: only pages of `streams.origins` may report.

use roadweave_proto::media::Cmcd;

use super::super::player::{PlayerReport, player_report};
use super::asked::Asked;
use super::end::ListenerEnd;
use super::http::{HEAD_MAX, Head};
use super::reply::{answer_with, cross_origin};

const TARGET: &str = "/v1/qoe";
/// Players in one request; the last report of each counts.
const PLAYERS_MAX: usize = 16;

pub(super) fn read(head: &Head<'_>) -> Option<Asked> {
    (head.path() == TARGET).then(|| report(head))
}

fn report(head: &Head<'_>) -> Asked {
    let field = |name: &str| head.value_of(name);
    let Some(origin) = head.allowed_origin() else {
        return refused(403, "this page's origin is not in streams.origins", None);
    };
    match head.method {
        "POST" => {}
        "OPTIONS" => {
            let answer = answer_with(200, "", &cross_origin(origin, "POST"));
            return Asked::Refused { answer, end: ListenerEnd::Served };
        }
        _ => return refused(405, "use POST", origin),
    }
    let length = field("Content-Length").and_then(|value| std::str::from_utf8(value).ok());
    let Some(length) = length.and_then(|value| value.trim().parse::<usize>().ok()) else {
        return refused(411, "Content-Length is missing or not a number", origin);
    };
    if head.length.saturating_add(length) > HEAD_MAX {
        return refused(413, "the report is too large", origin);
    }
    let Some(body) = head.rest.get(..length) else { return Asked::More };
    let kind = field("Content-Type").and_then(|value| std::str::from_utf8(value).ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim).unwrap_or_default();
    let players = match kind {
        "application/json" => match serde_json::from_slice::<PlayerReport>(body) {
            Ok(report) => vec![report],
            Err(error) => return refused(400, &error.to_string(), origin),
        },
        "application/cmcd" => {
            let lines = String::from_utf8_lossy(body);
            let report = |line: &str| player_report(&Cmcd::of_items(line), 0);
            last_of_each(lines.lines().filter_map(report))
        }
        _ => return refused(415, "use application/json or application/cmcd", origin),
    };
    Asked::Reported { players, answer: answer_with(200, "", &cross_origin(origin, "POST")) }
}

fn last_of_each(reports: impl Iterator<Item = PlayerReport>) -> Vec<PlayerReport> {
    let mut players: Vec<PlayerReport> = Vec::new();
    for report in reports {
        match players.iter().position(|known| known.player == report.player) {
            Some(place) => players[place] = report,
            None if players.len() < PLAYERS_MAX => players.push(report),
            None => {}
        }
    }
    players
}

fn refused(status: u16, why: &str, origin: Option<&str>) -> Asked {
    let answer = answer_with(status, why, &cross_origin(origin, "POST"));
    Asked::Refused { answer, end: ListenerEnd::BadRequest }
}

#[cfg(test)]
mod tests {
    use roadweave_tunnel::Qoe;

    use super::super::http;
    use super::*;

    fn ask(request: &str) -> Asked {
        http::read(request.as_bytes(), &["https://player.example".to_owned()], &[read])
    }

    fn status(asked: &Asked) -> String {
        let (Asked::Refused { answer, .. } | Asked::Reported { answer, .. }) = asked else {
            return format!("{asked:?}");
        };
        String::from_utf8_lossy(&answer[9..12]).into_owned()
    }

    fn post(fields: &str, body: &str) -> Asked {
        ask(&format!(
            "POST /v1/qoe HTTP/1.1\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    const JSON: &str = "Content-Type: application/json; charset=utf-8\r\n";
    const CMCD: &str = "content-type: application/cmcd\r\n";

    #[test]
    fn reports_are_read_as_json_and_as_cmcd() {
        let body = r#"{"player":9,"qoe":{"cached_bytes":1,"cached_frames":2,"bps":3,"fps":29.97}}"#;
        let Asked::Reported { players, .. } = post(JSON, body) else { panic!("it is one") };
        let qoe = Qoe { cached_bytes: 1, cached_frames: 2, bps: 3, fps: 29.97 };
        assert_eq!(players, [PlayerReport { player: 9, qoe }]);
        let lines = "e=ps,sid=\"a,bl=1\",v=2\nbl=9000,sid=\"a\"\nbl=2300,sid=\"a\",v=2\n\
                     bl=(900;v 1500;a),sid=\"b\"";
        let Asked::Reported { players, .. } = post(CMCD, lines) else { panic!("they are some") };
        let left: Vec<_> = players.iter().map(|report| report.qoe.play_time_left()).collect();
        assert_eq!(left.iter().map(|it| it.as_millis()).collect::<Vec<_>>(), [2300, 900]);
        assert_ne!(players[0].player, players[1].player);
    }

    #[test]
    fn what_is_no_report_is_refused_with_the_reason() {
        assert_eq!(status(&post(JSON, "{}")), "400");
        assert_eq!(status(&post("", "{}")), "415");
        assert_eq!(status(&ask("GET /v1/qoe HTTP/1.1\r\n\r\n")), "405");
        assert_eq!(status(&ask("POST /v1/qoe HTTP/1.1\r\n\r\n")), "411");
        let endless = format!("POST /v1/qoe HTTP/1.1\r\nContent-Length: {}\r\n\r\n", usize::MAX);
        assert_eq!(status(&ask(&endless)), "413");
        let part = "POST /v1/qoe HTTP/1.1\r\nContent-Length: 5\r\n\r\n{}";
        assert_eq!(ask(part), Asked::More);
    }

    #[test]
    fn pages_of_other_origins_cannot_report() {
        let body = "bl=0,sid=\"a\"";
        for (origin, expected) in
            [("https://player.example", "200"), ("https://evil.example", "403")]
        {
            let fields = format!("{CMCD}Origin: {origin}\r\n");
            assert_eq!(status(&post(&fields, body)), expected, "{origin}");
            let asked = ask(&format!("OPTIONS /v1/qoe HTTP/1.1\r\nOrigin: {origin}\r\n\r\n"));
            assert_eq!(status(&asked), expected, "{origin}");
        }
    }
}
