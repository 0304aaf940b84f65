//! More rows than a statement should touch.

use super::*;

/// Samples of three boxes, one each 10 s up to `count`.
async fn samples(world: &World, count: i64) {
    world.tenant("tram").await;
    world.devices(1..4).await;
    let rows = format!(
        "INSERT INTO sample (tenant, device, step_ms, at_ms, figures) \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
         SELECT tenant, id, 10000, i, '{{}}' FROM n CROSS JOIN device"
    );
    assert_eq!(world.tamper(&rows).await, 3 * count.unsigned_abs());
}

async fn left(world: &World) -> usize {
    let mut left = 0;
    for seed in 1..=3 {
        let (of, all) = (("tram", &*format!("bus-{seed}")), (0, i64::MAX));
        left += world.store.samples(of, STEPS_MS[0], all, 100_000).await.unwrap().len();
    }
    left
}

#[test]
fn a_backup_of_more_than_a_page_has_each_row_once() {
    on_both(|world| async move {
        samples(&world, 1_200).await;
        let (mut backup, target) = (Vec::new(), sqlite().await);
        world.store.backup(&mut backup, NOW).await.unwrap();
        // A second copy of a row would be refused.
        target.store.restore(&mut &*backup, 0, |_| Ok(())).await.unwrap();
        assert_eq!(left(&target).await, 3_600);
    });
}

#[test]
fn what_is_too_old_goes_however_much_it_is() {
    on_both(|world| async move {
        samples(&world, 3_000).await;
        if matches!(world.url, Database::Postgres(_)) {
            // All of it takes longer than a statement may.
            let slow = "CREATE FUNCTION slow() RETURNS trigger AS \
                        'BEGIN PERFORM pg_sleep(0.01); RETURN OLD; END' LANGUAGE plpgsql";
            world.tamper(slow).await;
            let each = "CREATE TRIGGER slow BEFORE DELETE ON sample FOR EACH ROW \
                        WHEN (OLD.at_ms % 10 = 0) EXECUTE FUNCTION slow()";
            world.tamper(each).await;
        }
        let day = 86_400_000;
        world.store.prune(2 * day + 2_991).await.unwrap();
        assert_eq!(left(&world).await, 3 * 10);
    });
}
