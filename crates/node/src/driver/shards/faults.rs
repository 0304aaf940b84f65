//! Keeps the message of a thread's panic, so that it is logged in one line.

use std::cell::RefCell;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(super) fn keep_for_this_thread() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            let kept = LAST.try_with(|last| {
                let mut last = last.try_borrow_mut().ok()?;
                *last.as_mut()? = panic.to_string();
                Some(())
            });
            if kept.ok().flatten().is_none() {
                usual(panic);
            }
        }));
    });
    LAST.set(Some(String::new()));
}

pub(super) fn take_last() -> String {
    let said = LAST.with_borrow_mut(|last| last.as_mut().map(std::mem::take));
    let said = said.unwrap_or_default();
    let plain = said.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(SAID_MAX).collect()
}

const SAID_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic, reason = "it is what is tested")]
    fn what_a_thread_says_in_its_end_is_one_line_and_other_threads_say_it_themselves() {
        let said = std::thread::spawn(|| {
            keep_for_this_thread();
            let failed = std::panic::catch_unwind(|| panic!("first\nsecond {}", "x".repeat(1_000)));
            assert!(failed.is_err());
            (take_last(), take_last())
        });
        let (said, then) = said.join().expect("it was caught");
        assert!(said.contains("faults.rs") && said.contains("first second xxx"), "{said}");
        assert!(said.len() <= SAID_MAX && !said.contains('\n'), "{said}");
        assert_eq!(then, "");
        let other = std::thread::spawn(|| {
            let failed = std::panic::catch_unwind(|| panic!("not kept"));
            (failed.is_err(), take_last())
        });
        assert_eq!(other.join().expect("it was caught"), (true, String::new()));
    }
}
