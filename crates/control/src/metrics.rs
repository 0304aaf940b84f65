//! Prometheus metrics, in base units, all named `roadweave_controller_...`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    request_seconds: Family<Label, Histogram>,
    refused: Family<Label, Counter>,
    pub streams: Gauge,
    pub watchers: Gauge,
    pub database_up: Gauge,
    pub handshakes: Gauge,
    pub documents: Counter,
    pub notes_lost: Counter,
    pub revocation_seconds: Histogram,
    frames: Family<Label, Counter<u64, AtomicU64>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    operation: &'static str,
    status: u16,
}

type Label = [(&'static str, &'static str); 1];

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("roadweave_controller");
        let seconds = || Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0]);
        let to = &mut registry;
        let family = Family::<Label, Histogram>::new_with_constructor(seconds);
        let confirmed = "Time from a revocation until all reachable proxies confirmed it";
        let lost = "Reports of streams that were dropped because the queue was full";
        Self {
            requests: add(to, "requests", "Requests answered", Family::default()),
            request_seconds: add_seconds(to, "request", "Time to answer a request", family),
            refused: add(to, "refused", "Refusals by reason", Family::default()),
            streams: add(to, "streams", "Streams of boxes, proxies and anchors", Gauge::default()),
            watchers: add(to, "watchers", "Receivers of server-sent events", Gauge::default()),
            database_up: add(to, "database_up", "1 while the database answers", Gauge::default()),
            handshakes: add(to, "handshakes", "Handshakes in progress", Gauge::default()),
            documents: add(to, "documents", "Documents signed", Counter::default()),
            notes_lost: add(to, "notes_lost", lost, Counter::default()),
            revocation_seconds: add_seconds(to, "revocation", confirmed, seconds()),
            frames: add(to, "frames", "Frames of streams", Family::default()),
            registry,
        }
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn add_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

impl Metrics {
    pub fn answered(&self, operation: &'static str, status: u16, seconds: f64) {
        self.requests.get_or_create(&Answered { operation, status }).inc();
        self.request_seconds.get_or_create(&[("operation", operation)]).observe(seconds);
    }

    pub fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&[("reason", reason)]).inc();
    }

    pub fn frames(&self, direction: &'static str, count: u64) {
        self.frames.get_or_create(&[("direction", direction)]).inc_by(count);
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}
