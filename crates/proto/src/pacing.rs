//! How fast packets follow one another.

crate::named! {
    /// What holds back a path's packets, besides its congestion window.
    #[derive(Default)]
    Pacing {
        /// A window may leave in half a round trip: for a stream that leaves room on average. Its
        /// frames are bursts, and congestion control knows no more of the path than the stream
        /// showed.
        #[default]
        Window = "window",
        /// The rate of the congestion control, which keeps the queue of a full path short.
        Rate = "rate",
        /// Strictly the rate and window of the congestion control, however little it knows of the
        /// path: for comparison with published results.
        Controller = "controller",
    }
}
