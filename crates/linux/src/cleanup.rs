//! Removes what an instance left in the system.

use crate::process::InstanceLock;
use crate::routes::Routes;
use crate::{DeviceError, Instance, dns, filter};

/// Removes all routes, rules, packet filters, resolvers and changed settings of an instance that is
/// not running. Call it at every start, with the lock held; it is quick when there is nothing.
///
/// The kernel removed TUNs with the process. Returns the first error, after trying everything.
pub fn cleanup(instance: &Instance, lock: &InstanceLock) -> Result<(), DeviceError> {
    // Opening removes existing routes.
    let routes = Routes::open(instance).map(drop);
    let resolvers = dns::restore(instance);
    // Settings first: the filters protect while forwarding is on.
    let failed = take_over(instance, lock);
    let mut tables = filter::tables_to_remove(instance, &failed);
    tables.extend([instance.answers_table(), instance.split_table()]);
    routes.and(resolvers).and(without_nft(filter::remove_tables(&tables)))
}

/// Restores only the changed settings; returns those that could not be restored. The next client
/// takes over routes, rules, filters and marks, and replaces them without a gap.
pub fn take_over(instance: &Instance, _lock: &InstanceLock) -> Vec<String> {
    instance.settings().restore(|_| true)
}

fn without_nft(result: Result<(), DeviceError>) -> Result<(), DeviceError> {
    match result {
        Err(DeviceError::Unavailable { .. }) => Ok(()),
        result => result,
    }
}
