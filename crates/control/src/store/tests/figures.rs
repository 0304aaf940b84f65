//! Stored figures that boxes and proxies report about themselves.

use super::*;

#[test]
fn samples_become_means() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        let sample = |device: &str, at_ms: i64, rate: f64| {
            let figures = BTreeMap::from([("rate".to_owned(), rate)]);
            ("tram".to_owned(), Sample { device: device.to_owned(), at_ms, figures })
        };
        let minute = NOW - NOW % 60_000;
        let fine = [
            sample("bus-17", minute + 1_234, 10.0),
            sample("bus-17", minute + 10_000, 20.0),
            sample("bus-17", minute + 60_000, 99.0),
            sample("nobody", minute, 1.0),
        ];
        world.store.keep_samples(&fine).await.unwrap();
        world.store.roll_up(minute + 61_000).await.unwrap();
        world.store.roll_up(minute + 61_000).await.unwrap();
        let read = |step| {
            let (store, all) = (Arc::clone(&world.store), (0, i64::MAX));
            async move {
                let found = store.samples(("tram", "bus-17"), step, all, 99).await.unwrap();
                found.iter().map(|it| (it.at_ms - minute, it.figures["rate"])).collect::<Vec<_>>()
            }
        };
        assert_eq!(read(10_000).await, [(0, 10.0), (10_000, 20.0), (60_000, 99.0)]);
        assert_eq!(read(60_000).await, [(0, 15.0)]);
        world.store.prune(NOW + 3 * 86_400_000).await.unwrap();
        assert!(read(10_000).await.is_empty());
        assert_eq!(read(60_000).await, [(0, 15.0)]);
    });
}

#[test]
fn sessions_and_reports_are_of_boxes_that_are_there() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let report = |device: &str, at_ms| Note::Report {
            tenant: "tram".to_owned(),
            report: Report {
                device: device.to_owned(),
                at_ms,
                report: json!({ "software": "1.0" }),
            },
            stream: "1".to_owned(),
            connected: true,
        };
        let all = [report("bus-17", 1), report("nobody", 1), report("bus-17", 2)];
        world.store.keep_notes(&all, NOW).await.unwrap();
        assert_eq!(world.store.report("tram", "bus-17").await.unwrap().at_ms, 2);
        let nobody = world.store.report("tram", "nobody").await.unwrap_err();
        assert!(matches!(nobody, StoreError::NotFound { .. }));
        let all = [on("bus-17", Some(20)), on("bus-17", None), on("nobody", Some(20))];
        world.store.keep_notes(&all, NOW).await.unwrap();
        let session = BoxSession {
            device: "bus-17".to_owned(),
            attachment: 1,
            proxy: "fra-1".to_owned(),
            from_ms: NOW,
            to_ms: Some(NOW),
            reason: Some("left".to_owned()),
        };
        assert_eq!(world.store.sessions("tram", "bus-17", 9).await.unwrap(), [session]);
        assert!(world.store.sessions("tram", "nobody", 9).await.unwrap().is_empty());
    });
}
