//! Reduces the privileges of a running daemon to the minimum: the network capabilities,
//! no_new_privs, seccomp, no core dumps.
//!
//! An attacker who takes the process over by a packet gets the machine's network, which the tunnel
//! needs, and little else: only files of the user it runs as, no modules, mounts, namespaces or
//! other processes, and no core file with keys. Programs that it starts (`nft`) inherit its
//! privileges and cannot gain more.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, geteuid, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::DeviceError;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod calls {
    pub(super) fn bar() -> Result<(), String> {
        Err(format!("there is no system call filter for {}", std::env::consts::ARCH))
    }
}

/// What a daemon needs in addition to the network's capabilities.
#[derive(Clone, Debug, Default)]
pub struct Needs<'a> {
    /// Whether it only uses sockets that it has, without an interface, route or filter of its own.
    pub only_sockets: bool,
    /// Whether it opens sockets at ports below 1024 again.
    pub low_ports: bool,
    /// Files and folders that it reads or writes again.
    pub files: Vec<&'a Path>,
}

/// Drops unneeded privileges. Call it once, in the thread that starts the others: threads inherit
/// capabilities. System calls that the kernel does not know are logged and skipped.
pub fn restrict(needs: &Needs<'_>) -> Result<(), DeviceError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let failed = |error| DeviceError::system("give up capabilities", error);
    let had = capabilities(None).map_err(failed)?;
    let keep = needs.capabilities() & had.permitted;
    cut_bounding_set(keep);
    hold(keep).map_err(failed)?;
    set_no_new_privs(true).map_err(failed)?;
    if let Err(error) = calls::bar() {
        tracing::warn!("dangerous system calls are not blocked: {error}");
    }
    Ok(())
}

/// Root that works in another user's `directory` becomes that user, with the network's
/// capabilities: its files are that user's, and links there cannot lead it to root's files.
///
/// Call it before the first thread that works there: threads inherit users.
pub fn become_owner_of(directory: &Path) -> Result<(), DeviceError> {
    let there = fs::symlink_metadata(directory).ok().filter(|there| there.is_dir());
    let Some(there) = there.filter(|there| geteuid().is_root() && there.uid() != 0) else {
        return Ok(());
    };
    let change = || {
        let (user, group) = (Uid::from_raw(there.uid()), Gid::from_raw(there.gid()));
        let keep = NETWORK & capabilities(None)?.permitted;
        set_keep_capabilities(true)?;
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
        hold(keep)
    };
    change().map_err(|error| {
        DeviceError::system(format!("become the owner of {}", directory.display()), error)
    })
}

fn hold(keep: CapabilitySet) -> Result<(), Errno> {
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: keep };
    set_capabilities(None, sets)?;
    for capability in keep.iter() {
        if let Err(error) = configure_capability_in_ambient_set(capability, true) {
            tracing::debug!(?capability, %error, "child processes do not have this capability");
        }
    }
    Ok(())
}

impl Needs<'_> {
    fn capabilities(&self) -> CapabilitySet {
        let mut wanted = match self.only_sockets {
            true => CapabilitySet::empty(),
            false => NETWORK,
        };
        if self.low_ports {
            wanted |= CapabilitySet::NET_BIND_SERVICE;
        }
        let me = geteuid().as_raw();
        if let Some(foreign) = self.files.iter().find(|path| is_foreign(path, me)) {
            let path = foreign.display();
            tracing::debug!(%path, "belongs to another user: CAP_DAC_OVERRIDE is kept if present");
            wanted |= CapabilitySet::DAC_OVERRIDE;
        }
        wanted
    }
}

fn is_foreign(path: &Path, me: u32) -> bool {
    let there = path.ancestors().find_map(|path| match path {
        path if path.as_os_str().is_empty() => fs::metadata(".").ok(),
        path => fs::metadata(path).ok(),
    });
    there.is_some_and(|there| there.uid() != me)
}

fn cut_bounding_set(keep: CapabilitySet) {
    for number in 0..CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => return,
            // Without CAP_SETPCAP, the bounding set has been reduced before.
            Err(error) => {
                tracing::debug!(%error, "the capability bounding set is unchanged");
                return;
            }
        }
    }
}

const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW);
const CAPABILITIES_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;
    use std::process::Command;

    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn only_what_is_needed_is_kept() {
        assert_eq!(Needs::default().capabilities(), NETWORK);
        let none = Needs { only_sockets: true, ..Needs::default() };
        assert_eq!(none.capabilities(), CapabilitySet::empty());
        let low = Needs { low_ports: true, ..Needs::default() };
        assert_eq!(low.capabilities(), NETWORK | CapabilitySet::NET_BIND_SERVICE);
        let me = geteuid().as_raw();
        let own = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_foreign(own.path(), me) && is_foreign(own.path(), me + 1));
        assert!(
            !is_foreign(&own.path().join("not/there"), me),
            "that of the file before it counts"
        );
    }

    #[test]
    fn a_restricted_process_cannot_be_looked_into_and_still_starts_threads_and_programs() {
        in_a_child(
            "a_restricted_process_cannot_be_looked_into_and_still_starts_threads_and_programs",
            || {
                assert_eq!(
                    dumpable_behavior().unwrap(),
                    DumpableBehavior::Dumpable,
                    "the test can fail"
                );
                restrict(&Needs::default()).unwrap();
                assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
                let Rlimit { current, maximum } = getrlimit(Resource::Core);
                assert_eq!((current, maximum), (Some(0), Some(0)));
                assert!(Command::new("true").status().unwrap().success());
                assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            },
        );
    }

    #[test]
    fn root_writes_as_the_owner_of_a_folder_and_keeps_the_network() {
        in_a_child("root_writes_as_the_owner_of_a_folder_and_keeps_the_network", || {
            let folder = tempfile::tempdir().unwrap();
            become_owner_of(folder.path()).unwrap();
            become_owner_of(&folder.path().join("not-there")).unwrap();
            let had = capabilities(None).unwrap().permitted;
            if chown(folder.path(), Some(65_534), Some(65_534)).is_err() {
                return;
            }
            become_owner_of(folder.path()).unwrap();
            let path = folder.path().join("new");
            fs::write(&path, "").unwrap();
            let there = fs::metadata(&path).unwrap();
            assert_eq!((there.uid(), there.gid()), (65_534, 65_534));
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let (sets, keep) = (capabilities(None).unwrap(), NETWORK & had);
            assert_eq!((sets.effective, sets.permitted), (keep, keep));
            let ambient = format!("CapAmb:\t{:016x}", keep.bits());
            assert!(status.contains(&ambient) && status.contains("Groups:\t \n"), "{status}");
            fs::remove_file(&path).unwrap();
        });
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
    fn every_barred_call_is_refused_and_others_are_not() {
        in_a_child("every_barred_call_is_refused_and_others_are_not", || {
            restrict(&Needs::default()).unwrap();
            for number in calls::BARRED {
                assert_eq!(calls::call(*number), Errno::PERM, "call {number}");
            }
            assert_eq!(calls::call(libc::SYS_clone3), Errno::NOSYS);
            assert_eq!(calls::call(libc::SYS_clone), Errno::PERM, "all namespaces at once");
            assert_eq!(calls::call(libc::SYS_close), Errno::BADF, "what is not barred is asked");
        });
    }

    fn in_a_child(name: &str, body: impl FnOnce()) {
        if std::env::var_os(CHILD).is_some() {
            return body();
        }
        let name = format!("privileges::tests::{name}");
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", &name, "--nocapture"]).env(CHILD, "").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    }

    const CHILD: &str = "ROADWEAVE_TEST_CHILD";
}
