//! A library for `LD_PRELOAD` that sets the clock of a program to 1970.

use std::path::PathBuf;
use std::process::Command;

use super::{TestNetwork, is_installed};

/// Builds the library; `None` where there is no C compiler.
pub fn of_1970(network: &TestNetwork) -> Option<PathBuf> {
    let (source, library) = (network.path("clock.c"), network.path("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    if !is_installed("cc") {
        return None;
    }
    let mut cc = Command::new("cc");
    let status = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(status.unwrap().success());
    let date = Command::new("date").arg("+%Y").env("LD_PRELOAD", &library).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&date.stdout).trim(), "1970");
    Some(library)
}

const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    long result = syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) t->tv_sec = 60;
    return (int)result;
}
int gettimeofday(struct timeval *t, void *zone) {
    (void)zone;
    t->tv_sec = 60;
    t->tv_usec = 0;
    return 0;
}
time_t time(time_t *t) { if (t) *t = 60; return 60; }
"#;
