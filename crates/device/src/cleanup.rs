//! Removes what an instance left in the system, whatever ended it.

use crate::process::InstanceLock;
use crate::routes::Routes;
use crate::{DeviceError, Instance, dns, filter};

/// Removes all routes, rules, packet filters, resolvers and changed settings of an instance that is
/// not running. Call it at every start, with the lock taken; it is quick when there is nothing.
///
/// TUN interfaces and the routes over them are gone already: the kernel removed them with the
/// process.
///
/// # Errors
/// The first failure, after all has been tried. Without the program `nft` there are no filters.
pub fn cleanup(instance: &Instance, lock: &InstanceLock) -> Result<(), DeviceError> {
    // Opening removes what is there.
    let routes = Routes::open(instance).map(drop);
    let resolvers = dns::restore(instance);
    // The settings first: the filters protect as long as forwarding is on.
    let failed = take_over(instance, lock);
    let mut tables = filter::tables_to_remove(instance, &failed);
    tables.extend([instance.answers_table(), instance.split_table()]);
    routes.and(resolvers).and(without_nft(filter::remove_tables(&tables)))
}

/// Restores the changed settings alone. What keeps traffic out of the clear, and strangers out of
/// the networks of this machine, is taken over by the next client as it is, and replaced in one
/// step: routes, rules, packet filters and the marks of answers. Returns the settings that could
/// not be restored.
pub(crate) fn take_over(instance: &Instance, _lock: &InstanceLock) -> Vec<String> {
    instance.restore_settings()
}

fn without_nft(result: Result<(), DeviceError>) -> Result<(), DeviceError> {
    match result {
        Err(DeviceError::Unavailable { .. }) => Ok(()),
        result => result,
    }
}
