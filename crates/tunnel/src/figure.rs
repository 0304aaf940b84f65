//! How figures of the status are shown elsewhere than in JSON: as metrics, and in tables.

use roadweave_proto::Delays;

/// A metric of `T`: its name without prefix and unit, its unit, its help, and its figure, if any.
pub type Metric<T> = (&'static str, &'static str, &'static str, fn(&T) -> Option<Figure>);

/// A column of `roadweave show`: title, value, and the unit and decimals of its cells; without them
/// it is a count, cut to five characters.
pub type Column<T> = (&'static str, fn(&T) -> Option<f64>, Option<(f64, usize)>);

/// A list of [`Metric`]s.
#[macro_export]
macro_rules! metrics {
    ($($name:literal $unit:literal $help:literal |$it:ident| $figure:expr,)*) => {
        &[$(($name, $unit, $help, |$it| $figure)),*]
    };
}

/// A figure of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// A number that never decreases.
    Count(u64),
    /// Seconds that never decrease.
    Time(f64),
    /// A whole number.
    Level(u64),
    /// A number.
    Gauge(f64),
    /// A histogram.
    Delays(Delays),
}

/// A number that never decreases.
pub fn count(count: u64) -> Option<Figure> {
    Some(Figure::Count(count))
}

/// A number; NaN is left out.
pub fn gauge(value: f64) -> Option<Figure> {
    (!value.is_nan()).then_some(Figure::Gauge(value))
}

/// 1 while something holds, otherwise 0.
pub fn flag(holds: bool) -> Option<Figure> {
    gauge(f64::from(u8::from(holds)))
}

/// A histogram; an empty one is left out.
pub fn delays(delays: Delays) -> Option<Figure> {
    (!delays.is_empty()).then_some(Figure::Delays(delays))
}
