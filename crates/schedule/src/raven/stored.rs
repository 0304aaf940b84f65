//! What was learned, as JSON.
//!
//! ```text
//! {"version":1,
//!  "networks":{"wwan0":{"tables":{"lambda_s":3.2,"errors":[..],"ages":[[0.25,1.1],..]},
//!                       "log":[[[0.0,0.0521],[0.2,0.0514],..],..]}},
//!  "pooled":{..}}
//! ```
//!
//! Times are in seconds, in a log since its run began. A nameless network counts in `pooled` only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::log::{LOG_MAX, Log};
use super::networks::{NAME_MAX, NETWORKS_MAX, Network, RTT_MIN};
use super::tables::{FACTOR_MAX, LAMBDAS, PERCENTILES, Tables};
use crate::RestoreError;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    networks: BTreeMap<String, StoredNetwork>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pooled: Option<StoredTables>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredNetwork {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tables: Option<StoredTables>,
    log: Vec<Vec<(f64, f64)>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTables {
    lambda_s: f64,
    errors: Vec<f64>,
    ages: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Many networks, which a peer may name, get shorter logs.
pub(super) fn write(networks: &[Network], pooled: Option<&Tables>) -> String {
    let named = networks.iter().filter(|network| network.name.is_some()).count();
    let samples = SAMPLES_MAX / named.max(1);
    let stored = |network: &Network| {
        let log = network.log.newest(samples).map(|run| {
            let begin = run.first().map_or(0.0, |(at, _)| *at);
            run.iter().map(|(at, rtt)| (to_millis(at - begin), to_micros(*rtt))).collect()
        });
        let tables = network.tables.as_ref().map(StoredTables::of);
        Some((network.name.clone()?, StoredNetwork { tables, log: log.collect() }))
    };
    let file = File {
        version: VERSION,
        networks: networks.iter().filter_map(stored).collect(),
        pooled: pooled.map(StoredTables::of),
    };
    serde_json::to_string(&file).expect("numbers and names are always JSON")
}

/// # Errors
/// When `text` is not what [`write`] gives, or no network could be like that.
pub(super) fn read(text: &str) -> Result<(Vec<Network>, Option<Tables>), RestoreError> {
    let syntax = |error: serde_json::Error| RestoreError(error.to_string());
    let Versioned { version } = serde_json::from_str(text).map_err(syntax)?;
    if version != VERSION {
        let message = format!("its version is {version}, and this program supports {VERSION}");
        return Err(RestoreError(message));
    }
    let file: File = serde_json::from_str(text).map_err(syntax)?;
    if file.networks.len() > NETWORKS_MAX {
        let message = format!("{} networks; at most {NETWORKS_MAX}", file.networks.len());
        return Err(RestoreError(message));
    }
    let network = |(name, stored): (String, StoredNetwork)| {
        let wrong = |what: &str| RestoreError(format!("network {name:?}: {what}"));
        if name.len() > NAME_MAX {
            return Err(wrong("its name is too long"));
        }
        let tables = stored.tables.map(StoredTables::check).transpose().map_err(wrong)?;
        let log = read_log(&stored.log).map_err(wrong)?;
        Ok(Network { name: Some(name), log, tables, ..Network::default() })
    };
    let networks = file.networks.into_iter().map(network).collect::<Result<_, _>>()?;
    let pooled = file.pooled.map(StoredTables::check).transpose();
    Ok((networks, pooled.map_err(|what| RestoreError(format!("pooled: {what}")))?))
}

fn read_log(runs: &[Vec<(f64, f64)>]) -> Result<Log, &'static str> {
    if runs.iter().map(Vec::len).sum::<usize>() > 2 * LOG_MAX {
        return Err("its log is too long");
    }
    let mut log = Log::default();
    for run in runs {
        for pair in run.windows(2) {
            if pair[1].0 < pair[0].0 {
                return Err("the times of its log do not ascend");
            }
        }
        for &(at, rtt) in run {
            if !(0.0..=AT_MAX).contains(&at) || !(RTT_MIN..=RTT_MAX).contains(&rtt) {
                return Err("its log has an invalid time");
            }
            log.add(at, rtt);
        }
        log.end_run();
    }
    Ok(log)
}

impl StoredTables {
    fn of(tables: &Tables) -> Self {
        Self { lambda_s: tables.lambda, errors: tables.errors.clone(), ages: tables.ages.clone() }
    }

    fn check(self) -> Result<Tables, &'static str> {
        let Self { lambda_s, errors, ages } = self;
        let is_ascending = |values: &[f64]| values.windows(2).all(|pair| pair[0] <= pair[1]);
        if !(LAMBDAS[0]..=LAMBDAS[LAMBDAS.len() - 1]).contains(&lambda_s) {
            return Err("lambda_s is out of bounds");
        }
        let error_is_good = |error: &f64| (0.0..=ERROR_MAX).contains(error);
        if errors.len() != PERCENTILES
            || !errors.iter().all(error_is_good)
            || !is_ascending(&errors)
        {
            return Err("errors are not percentiles");
        }
        let age_is_good = |(age, factor): &(f64, f64)| {
            (0.0..=AT_MAX).contains(age) && (1.0..=FACTOR_MAX).contains(factor)
        };
        let ascending = ages.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let begins_later = ages.first().is_some_and(|(age, _)| *age > 0.0);
        if !(1..=AGES_MAX).contains(&ages.len())
            || !ages.iter().all(age_is_good)
            || !ascending
            || !begins_later
        {
            return Err("ages are not a table of ages");
        }
        Ok(Tables { lambda: lambda_s, errors, ages })
    }
}

fn to_millis(at: f64) -> f64 {
    (at * 1e3).round() / 1e3
}

/// To a microsecond, and no less than one.
fn to_micros(rtt: f64) -> f64 {
    ((rtt * 1e6).round() / 1e6).max(RTT_MIN)
}

const VERSION: u32 = 1;
/// Samples of all networks: four whole logs.
const SAMPLES_MAX: usize = 4 * LOG_MAX;
const AGES_MAX: usize = 64;
const ERROR_MAX: f64 = 1e6;
/// The latest time of a sample, seconds: a century.
const AT_MAX: f64 = 3e9;
/// The longest round trip of a sample, seconds.
const RTT_MAX: f64 = 600.0;
