//! The filter of system calls. It lists dangerous calls, since those of a C library change with its
//! version and killing a daemon for a harmless one would be worse. Listed calls fail with EPERM.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

pub(super) fn bar() -> Result<(), String> {
    let target = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    for filter in filters(target).map_err(|error| error.to_string())? {
        apply_filter_all_threads(&filter).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn filters(target: TargetArch) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let compile = |rules, errno: Errno| {
        let errno = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
        SeccompFilter::new(rules, SeccompAction::Allow, errno, target)?.try_into()
    };
    let mut barred: BTreeMap<i64, Vec<SeccompRule>> =
        BARRED.iter().map(|call| (*call, Vec::new())).collect();
    let new_namespace = |flag: libc::c_int| {
        let flag = u64::from(flag.unsigned_abs());
        let operator = SeccompCmpOp::MaskedEq(flag);
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, operator, flag)?])
    };
    let flags = NAMESPACES.iter().map(|flag| new_namespace(*flag));
    barred.insert(libc::SYS_clone, flags.collect::<Result<_, _>>()?);
    // Filters cannot read its flags; without it the C library uses the older call.
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([compile(unknown, Errno::NOSYS)?, compile(barred, Errno::PERM)?])
}

const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

pub(super) const BARRED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_reboot,
    libc::SYS_syslog,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Calls that bypass filters.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

#[cfg(test)]
#[allow(unsafe_code, reason = "whatever the call is, it gets no pointer that leads anywhere")]
pub(super) fn call(number: libc::c_long) -> Errno {
    const NOTHING: libc::c_long = -1;
    // SAFETY: the last page of the address space, to which -1 leads, is never mapped; no file
    // descriptor or process has this number, and no call accepts all flags at once.
    let result =
        unsafe { libc::syscall(number, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) };
    assert_eq!(result, -1, "call {number} with arguments that are none");
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("the system said why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_for_every_architecture_that_has_them() {
        for target in [TargetArch::x86_64, TargetArch::aarch64] {
            assert!(filters(target).is_ok());
        }
    }
}
