use super::HealthState::{Alive, Dead, Lost, Unheard};
use super::*;
use crate::testing::{at, key};

struct Turned {
    watch: Watch,
    seconds: u64,
    changed: Vec<(u64, PublicKey, HealthState)>,
}

impl Turned {
    fn new() -> Self {
        let mut watch = Watch::new(at(0));
        watch.add(key(1), at(0));
        watch.add(key(2), at(0));
        Self { watch, seconds: 0, changed: Vec::new() }
    }

    fn turn(&mut self, seconds: u64, each: impl Fn(&mut Watch, Instant)) -> &mut Self {
        for _ in 0..seconds {
            self.seconds += 1;
            let now = at(self.seconds);
            each(&mut self.watch, now);
            let changed = self.watch.poll(now);
            self.changed.extend(changed.into_iter().map(|(key, to)| (self.seconds, key, to)));
        }
        self
    }

    fn of(&self, proxy: u8) -> Vec<(u64, HealthState)> {
        let of = self.changed.iter().filter(|(_, of, _)| *of == key(proxy));
        of.map(|(at, _, vital)| (*at, *vital)).collect()
    }

    fn vital(&self, proxy: u8) -> HealthState {
        self.watch.vital(&key(proxy)).expect("watched")
    }
}

fn both(watch: &mut Watch, now: Instant) {
    watch.on_proxy(&key(1), now);
    watch.on_proxy(&key(2), now);
}

fn first(watch: &mut Watch, now: Instant) {
    watch.on_proxy(&key(1), now);
}

#[test]
fn a_proxy_is_dead_once_neither_it_nor_a_box_says_otherwise() {
    let mut turned = Turned::new();
    turned.turn(10, both).turn(100, first);
    assert_eq!(turned.of(2), [(1, Alive), (40, Unheard), (75, Dead)]);
    assert_eq!(turned.of(1), [(1, Alive)]);
    turned.turn(1, both);
    assert_eq!(turned.vital(2), Alive);
}

#[test]
fn a_proxy_that_boxes_use_is_never_dead() {
    let mut turned = Turned::new();
    turned.turn(10, both).turn(1_000, |watch, now| {
        first(watch, now);
        watch.on_box(Some(&key(2)), now);
    });
    assert_eq!(turned.of(2), [(1, Alive), (40, Unheard), (610, Lost)]);
    turned.turn(100, first);
    assert_eq!(turned.of(2).last(), Some(&(1_010 + 75, Dead)));
}

#[test]
fn a_controller_that_receives_nothing_declares_no_proxy_dead() {
    let mut turned = Turned::new();
    turned.turn(10, both).turn(3_600, |_, _| ());
    let dead = turned.changed.iter().filter(|(_, _, vital)| *vital == Dead);
    assert_eq!(dead.count(), 0);
    turned.turn(70, first);
    assert_eq!(turned.vital(2), Unheard);
    turned.turn(10, first);
    assert_eq!(turned.vital(2), Dead);
}

#[test]
fn a_controller_that_was_suspended_declares_no_proxy_dead() {
    let mut turned = Turned::new();
    turned.turn(10, both);
    turned.seconds += 3_600;
    turned.turn(20, first);
    assert_eq!(turned.vital(2), Unheard);
    assert_eq!(turned.vital(1), Alive);
}

#[test]
fn who_was_dead_is_not_brought_back_by_a_gap() {
    let mut turned = Turned::new();
    turned.turn(10, both).turn(100, first);
    turned.seconds += 3_600;
    turned.turn(20, first);
    assert_eq!(turned.vital(2), Dead);
    turned.turn(1, |watch, now| watch.on_box(Some(&key(2)), now));
    assert_ne!(turned.vital(2), Dead);
}

#[test]
fn a_controller_that_has_just_begun_waits_before_it_judges() {
    let mut turned = Turned::new();
    turned.turn(74, first);
    assert_eq!(turned.of(2), []);
    turned.turn(1, first);
    assert_eq!(turned.of(2), [(75, Dead)]);
}
