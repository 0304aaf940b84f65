//! A sniffer for plain HTTP: reports of players (CMCD), priorities, and the first picture of an
//! answer. It reads bytes after they were moved: nothing is delayed or changed.

use std::collections::BTreeMap;

use roadweave_proto::Instant;
use roadweave_proto::media::{Request, Requests, Responses, player_of};
use roadweave_proto::wire::StreamId;
use roadweave_stream::Streams;

use super::player::{PlayerReport, player_report};

pub(super) const REPORTS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct HttpFindings {
    pub(super) counts: BTreeMap<&'static str, u64>,
    reports: Vec<PlayerReport>,
}

impl HttpFindings {
    fn count(&mut self, what: &'static str, times: usize) {
        if times > 0 {
            *self.counts.entry(what).or_default() += times as u64;
        }
    }

    pub(super) fn add_report(&mut self, report: PlayerReport) {
        if self.reports.len() < REPORTS_MAX {
            self.reports.push(report);
        }
    }

    pub(super) fn take_reports(&mut self) -> Vec<PlayerReport> {
        std::mem::take(&mut self.reports)
    }
}

#[derive(Debug)]
pub(super) struct HttpSniffer {
    requests: Requests,
    end: SnifferSide,
    is_over: bool,
}

#[derive(Debug)]
enum SnifferSide {
    /// `nameless`: the player's number if it does not give its name.
    Application { nameless: u64 },
    /// `moved`: bytes that went from the host into the stream.
    Host { responses: Box<Responses>, moved: u64 },
}

impl HttpSniffer {
    pub(super) fn of_application(caller: impl std::hash::Hash) -> Self {
        Self::of(SnifferSide::Application { nameless: player_of(caller) })
    }

    pub(super) fn of_host() -> Self {
        Self::of(SnifferSide::Host { responses: Box::default(), moved: 0 })
    }

    fn of(end: SnifferSide) -> Self {
        Self { requests: Requests::default(), end, is_over: false }
    }

    pub(super) fn on_sent(
        &mut self,
        now: Instant,
        streams: &mut Streams,
        id: StreamId,
        bytes: &[u8],
        findings: &mut HttpFindings,
    ) {
        match &mut self.end {
            SnifferSide::Application { nameless } => {
                let nameless = *nameless;
                self.requests.feed(bytes, |request| {
                    findings.count("requests", 1);
                    let _ = streams.ask_priority(now, id, request.priority.unwrap_or_default());
                    let report = request.cmcd.and_then(|cmcd| player_report(&cmcd, nameless));
                    findings.count("players", usize::from(report.is_some()));
                    report.into_iter().for_each(|report| findings.add_report(report));
                });
            }
            SnifferSide::Host { responses, moved } => {
                let before = *moved;
                *moved += bytes.len() as u64;
                let seen = responses.feed(bytes);
                findings.count("answers", seen.heads);
                findings.count("first-frames", seen.frames);
                if seen.urgent > 0 {
                    let _ = streams.set_head(now, id, before + seen.urgent as u64);
                }
                if let (Some(own), Ok(asked)) = (seen.priority, streams.asked_priority(id)) {
                    // The host knows better than the client (RFC 9218 section 8).
                    let _ = streams.set_priority(now, id, own.unwrap_or(asked));
                }
            }
        }
        self.note(findings);
    }

    pub(super) fn on_received(&mut self, bytes: &[u8], findings: &mut HttpFindings) {
        if let SnifferSide::Host { responses, .. } = &mut self.end {
            self.requests.feed(bytes, |request: Request| {
                findings.count("requests", 1);
                responses.expect(request);
            });
            self.note(findings);
        }
    }

    fn note(&mut self, findings: &mut HttpFindings) {
        let of_host = match &self.end {
            SnifferSide::Application { .. } => None,
            SnifferSide::Host { responses, .. } => responses.unread(),
        };
        if let Some(why) = self.requests.unread().or(of_host).filter(|_| !self.is_over) {
            self.is_over = true;
            findings.count(why.name(), 1);
        }
    }
}
