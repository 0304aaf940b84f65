//! How many may watch at once: so many in all, for each tenant, and for each caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{App, Caller, Problem};

/// Who watches in how many places.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<HashMap<String, usize>>);

/// What lets a caller watch; dropping it leaves it to others.
pub struct WatcherPermit {
    app: Arc<App>,
    caller: String,
    tenant: String,
}

impl WatcherPermit {
    /// Takes one.
    ///
    /// # Errors
    /// 429 when the caller or its tenant has its share, 503 when all are taken.
    pub fn take(app: &Arc<App>, caller: &Caller) -> Result<Self, Problem> {
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

/// In place of a tenant's name.
const ALL: &str = "";
const WATCHERS_MAX: usize = 512;
const OF_TENANT_MAX: usize = 256;
const OF_CALLER_MAX: usize = 16;
