//! The links, and what is downloaded over them.

use std::fmt;

use roadweave_emulate::LinkFields;

/// A link, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    mbps: u32,
    round_trip_ms: u32,
    /// Share of the packets, each for itself, percent.
    loss_percent: f64,
    /// Standard deviation; no packet overtakes another.
    jitter_ms: u32,
    /// The queue, by how long it takes to empty.
    queue_ms: u32,
}

/// What is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// As much as comes in some seconds.
    Bulk,
    /// So many bytes.
    Bytes(u64),
}

impl Setting {
    const fn new(mbps: u32, round_trip_ms: u32, queue_ms: u32) -> Self {
        Self { mbps, round_trip_ms, loss_percent: 0.0, jitter_ms: 0, queue_ms }
    }

    const fn losing(self, loss_percent: f64) -> Self {
        Self { loss_percent, ..self }
    }

    const fn trembling(self, jitter_ms: u32) -> Self {
        Self { jitter_ms, ..self }
    }

    /// The link with this number.
    pub(super) fn fields(&self, number: usize) -> LinkFields {
        LinkFields {
            name: format!("link{number}"),
            rate_kbps: Some(u64::from(self.mbps) * 1_000),
            delay_ms: Some(f64::from(self.round_trip_ms) / 2.0),
            loss: (self.loss_percent > 0.0).then_some(self.loss_percent / 1e2),
            jitter_ms: (self.jitter_ms > 0).then_some(self.jitter_ms.into()),
            queue_bytes: Some(self.mbps as usize * 125 * self.queue_ms as usize),
            ..LinkFields::default()
        }
    }
}

impl fmt::Display for Setting {
    /// Mbit/s, round trip, queue, and what else there is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M-{}ms-q{}", self.mbps, self.round_trip_ms, self.queue_ms)?;
        if self.loss_percent > 0.0 {
            write!(f, "-{}%", self.loss_percent)?;
        }
        if self.jitter_ms > 0 {
            write!(f, "-j{}", self.jitter_ms)?;
        }
        Ok(())
    }
}

impl Task {
    /// What is measured.
    pub(super) const ALL: [Self; 4] =
        [Self::Bulk, Self::Bytes(32_000), Self::Bytes(200_000), Self::Bytes(2_000_000)];

    pub(super) fn bytes(self) -> Option<u64> {
        match self {
            Self::Bulk => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bulk => f.write_str("bulk"),
            Self::Bytes(bytes @ 1_000_000..) => write!(f, "{} MB", bytes / 1_000_000),
            Self::Bytes(bytes) => write!(f, "{} kB", bytes / 1_000),
        }
    }
}

/// What is measured.
pub(super) const SETTINGS: [Setting; 16] = [
    Setting::new(20, 50, 50),
    Setting::new(10, 20, 100),
    Setting::new(50, 20, 50),
    Setting::new(50, 120, 60),
    Setting::new(10, 120, 250),
    Setting::new(20, 50, 10),
    Setting::new(20, 50, 300),
    Setting::new(20, 50, 50).losing(0.5),
    Setting::new(20, 50, 50).losing(2.0),
    Setting::new(50, 20, 50).losing(0.5),
    Setting::new(10, 120, 120).losing(2.0),
    Setting::new(50, 120, 120).losing(0.5),
    Setting::new(20, 50, 50).trembling(5),
    Setting::new(20, 50, 100).trembling(20),
    Setting::new(50, 20, 50).trembling(5),
    Setting::new(20, 80, 80).losing(0.5).trembling(5),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_settings_apart_and_links_are_as_they_say() {
        let names: std::collections::BTreeSet<String> =
            SETTINGS.iter().map(Setting::to_string).collect();
        assert_eq!(names.len(), SETTINGS.len());
        let setting = Setting::new(20, 80, 100).losing(0.5).trembling(5);
        assert_eq!(setting.to_string(), "20M-80ms-q100-0.5%-j5");
        let fields = setting.fields(3);
        assert_eq!((fields.queue_bytes, fields.loss), (Some(250_000), Some(0.005)));
        assert_eq!((fields.delay_ms, fields.jitter_ms), (Some(40.0), Some(5.0)));
        assert_eq!(Task::ALL.map(|task| task.to_string()), ["bulk", "32 kB", "200 kB", "2 MB"]);
    }
}
