//! Prometheus metrics, in base units, all named `roadweave_controller_...`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    request_seconds: Family<Operation, Histogram>,
    refused: Family<Reason, Counter>,
    /// Open streams of boxes, proxies and anchors.
    pub streams: Gauge,
    /// Open event streams.
    pub watchers: Gauge,
    /// 1 while the database answers.
    pub database_up: Gauge,
    /// Handshakes in progress.
    pub handshakes: Gauge,
    /// Documents signed.
    pub documents: Counter,
    /// Notes of streams that were dropped because the queue was full.
    pub notes_lost: Counter,
    /// Time from writing a revocation until all reachable proxies and anchors have confirmed it.
    pub revocation_seconds: Histogram,
    frames: Family<Direction, Counter<u64, AtomicU64>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    operation: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("roadweave_controller");
        let seconds = || Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0]);
        let requests = Family::<Answered, Counter>::default();
        registry.register("requests", "Requests answered", requests.clone());
        let request_seconds = Family::<Operation, Histogram>::new_with_constructor(seconds);
        let help = "How long answers took";
        registry.register_with_unit("request", help, Unit::Seconds, request_seconds.clone());
        let refused = Family::<Reason, Counter>::default();
        registry.register("refused", "What was not let in, by reason", refused.clone());
        let gauge = |registry: &mut Registry, name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let streams = gauge(&mut registry, "streams", "Streams of boxes, proxies and anchors");
        let watchers = gauge(&mut registry, "watchers", "Receivers of server-sent events");
        let database_up = gauge(&mut registry, "database_up", "1 while the database answers");
        let handshakes = gauge(&mut registry, "handshakes", "Handshakes under way");
        let (documents, notes_lost) = (Counter::default(), Counter::default());
        registry.register("documents", "Documents signed", documents.clone());
        let help = "What streams told and was not kept, for want of room";
        registry.register("notes_lost", help, notes_lost.clone());
        let revocation_seconds = seconds();
        let help = "From the writing of a revocation until all who can be reached confirmed it";
        let histogram = revocation_seconds.clone();
        registry.register_with_unit("revocation", help, Unit::Seconds, histogram);
        let frames = Family::<Direction, Counter<u64, AtomicU64>>::default();
        registry.register("frames", "Frames of streams", frames.clone());
        Self {
            registry,
            requests,
            request_seconds,
            refused,
            streams,
            watchers,
            database_up,
            handshakes,
            documents,
            notes_lost,
            revocation_seconds,
            frames,
        }
    }
}

impl Metrics {
    /// Counts an answer.
    pub fn answered(&self, operation: &'static str, status: u16, seconds: f64) {
        self.requests.get_or_create(&Answered { operation, status }).inc();
        self.request_seconds.get_or_create(&Operation { operation }).observe(seconds);
    }

    /// Counts a refused connection or request.
    pub fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    /// Counts frames of a stream.
    pub fn frames(&self, direction: &'static str, count: u64) {
        self.frames.get_or_create(&Direction { direction }).inc_by(count);
    }

    /// All metrics as OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}
