//! Limits of open event streams: in all, of a tenant, and of a caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{App, Caller, Problem, Result};

/// The number of open event streams by tenant and caller.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<HashMap<String, usize>>);

/// A place for one event stream, freed on drop.
pub struct WatcherPermit {
    app: Arc<App>,
    caller: String,
    tenant: String,
}

impl WatcherPermit {
    /// Takes a place: 429 if the caller or its tenant has its share, 503 if all are taken.
    pub fn take(app: &Arc<App>, caller: &Caller) -> Result<Self> {
        let tenant = caller.tenant.clone();
        let of_caller = format!("{tenant}/{}", caller.name);
        let refused = |reason, problem| {
            app.metrics.refuse(reason);
            Err(problem)
        };
        let mut all = app.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |whose: &str| all.get(whose).copied().unwrap_or_default();
        if has(&of_caller) >= OF_CALLER_MAX || has(&tenant) >= OF_TENANT_MAX {
            let detail = "you watch in many places already: close one";
            return refused("watchers-of-caller", Problem::new(429, "too-many", detail));
        }
        if has(ALL) >= WATCHERS_MAX {
            return refused("watchers", Problem::new(503, "busy", "too many watch already"));
        }
        for whose in [ALL, &tenant, &of_caller] {
            *all.entry(whose.to_owned()).or_default() += 1;
        }
        drop(all);
        app.metrics.watchers.inc();
        Ok(Self { app: Arc::clone(app), caller: of_caller, tenant })
    }
}

impl Drop for WatcherPermit {
    fn drop(&mut self) {
        self.app.metrics.watchers.dec();
        let mut all = self.app.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
        for whose in [ALL, &self.tenant, &self.caller] {
            if let Some(count) = all.get_mut(whose) {
                *count -= 1;
                if *count == 0 {
                    all.remove(whose);
                }
            }
        }
    }
}

const ALL: &str = "";
const WATCHERS_MAX: usize = 512;
const OF_TENANT_MAX: usize = 256;
const OF_CALLER_MAX: usize = 16;
