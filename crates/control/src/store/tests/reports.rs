//! What streams report: figures, and several streams about the same box or proxy.

use super::*;

fn status(stream: &str, connected: bool, (serial, hash): (i64, &str)) -> Note {
    let (hash, stream) = (hash.to_owned(), stream.to_owned());
    Note::Status(ProxyStatus { connected, serial, hash, stream, ..super::status("fra-1") })
}

#[test]
fn the_end_of_a_former_stream_says_nothing() {
    in_tram(|world| async move {
        world.insert("tram", device("bus-1", 1)).await.unwrap();
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let is_there = async |notes: &[Note]| {
            note::store(&world.store, notes, NOW).await.unwrap();
            let status = proxy_status::all(&world.store, None).await.unwrap().remove(0);
            let report = report::latest(&world.store, "tram", "bus-1").await.unwrap().report;
            (status.connected, report["connected"] == true)
        };
        let both = |stream, connected| {
            [status(stream, connected, (0, "")), report("bus-1", stream, connected, NOW)]
        };
        assert_eq!(is_there(&both("a", true)).await, (true, true));
        assert_eq!(is_there(&both("b", true)).await, (true, true));
        assert_eq!(is_there(&both("a", false)).await, (true, true), "it is on another one");
        assert_eq!(is_there(&both("b", false)).await, (false, false));
        assert_eq!(is_there(&both("c", true)).await, (true, true));
    });
}

#[test]
fn a_proxy_is_witnessed_by_boxes_that_it_may_serve() {
    in_tram(|world| async move {
        world.tenant("ferry").await;
        world.host("host").await;
        world.insert("tram", proxy("of-tram", 20)).await.unwrap();
        world.insert("host", proxy("shared", 21)).await.unwrap();
        let witnessed = async |tenant: &str, seed| {
            let note = Note::Witness { tenant: tenant.to_owned(), proxy: key(seed) };
            note::store(&world.store, &[note], NOW).await.unwrap();
            let all = proxy_status::all(&world.store, None).await.unwrap();
            all.iter().map(|it| (it.proxy.clone(), it.witnessed_ms)).collect::<Vec<_>>()
        };
        assert_eq!(witnessed("ferry", 20).await, [], "none of theirs can be on it");
        assert_eq!(witnessed("tram", 20).await, [("of-tram".to_owned(), NOW)]);
        assert_eq!(witnessed("ferry", 21).await.len(), 2);
    });
}

#[test]
fn a_proxy_has_confirmed_what_its_own_chain_says() {
    in_tram(|world| async move {
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let made = world.revoke("tram", 1).await.unwrap();
        for (head, confirmed) in
            [((1, "of a fork"), 0), ((9, &*made.hash), 0), ((1, &*made.hash), 1)]
        {
            note::store(&world.store, &[status("a", true, head)], NOW).await.unwrap();
            let all = proxy_status::confirmations(&world.store, "tram", 1, NOW).await.unwrap();
            let found = (all.confirmed.len(), all.missing.len());
            assert_eq!(found, (confirmed, 1 - confirmed), "{head:?}");
        }
    });
}

#[test]
fn samples_become_means() {
    in_tram(|world| async move {
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
        report::store_samples(&world.store, &fine).await.unwrap();
        report::roll_up(&world.store, minute + 61_000).await.unwrap();
        report::roll_up(&world.store, minute + 61_000).await.unwrap();
        let read = |step| {
            let (store, all) = (Arc::clone(&world.store), (0, i64::MAX));
            async move {
                let found =
                    report::samples(&store, ("tram", "bus-17"), step, all, 99).await.unwrap();
                found.iter().map(|it| (it.at_ms - minute, it.figures["rate"])).collect::<Vec<_>>()
            }
        };
        assert_eq!(read(10_000).await, [(0, 10.0), (10_000, 20.0), (60_000, 99.0)]);
        assert_eq!(read(60_000).await, [(0, 15.0)]);
        outbox::prune(&world.store, NOW + 3 * 86_400_000).await.unwrap();
        assert!(read(10_000).await.is_empty());
        assert_eq!(read(60_000).await, [(0, 15.0)]);
    });
}

#[test]
fn sessions_and_reports_are_of_boxes_that_are_there() {
    in_tram(|world| async move {
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let all = [("bus-17", 1), ("nobody", 1), ("bus-17", 2)];
        let all = all.map(|(device, at_ms)| report(device, "1", true, at_ms));
        note::store(&world.store, &all, NOW).await.unwrap();
        assert_eq!(report::latest(&world.store, "tram", "bus-17").await.unwrap().at_ms, 2);
        let unknown = report::latest(&world.store, "tram", "nobody").await.unwrap_err();
        assert!(matches!(unknown, StoreError::NotFound { .. }));
        let all = [on("bus-17", Some(20)), on("bus-17", None), on("nobody", Some(20))];
        note::store(&world.store, &all, NOW).await.unwrap();
        let session = BoxSession {
            device: "bus-17".to_owned(),
            attachment: 1,
            proxy: "fra-1".to_owned(),
            from_ms: NOW,
            to_ms: Some(NOW),
            reason: Some("left".to_owned()),
        };
        assert_eq!(report::sessions(&world.store, "tram", "bus-17", 9).await.unwrap(), [session]);
        assert!(report::sessions(&world.store, "tram", "nobody", 9).await.unwrap().is_empty());
    });
}
