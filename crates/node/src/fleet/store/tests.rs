use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn written(directory: &Path) -> Option<u32> {
    StateStore::open(directory).expect("free").read()
}

#[test]
fn the_last_write_is_read_again_and_nothing_lies_beside() {
    let folder = folder();
    let directory = folder.path().join("sub");
    assert!(!StateStore::is_there(&directory));
    let mut store = StateStore::open(&directory).expect("made");
    assert_eq!(store.read::<u32>(), None);
    for value in 1..=5_u32 {
        assert!(store.write(&value));
    }
    drop(store);
    assert_eq!(written(&directory), Some(5));
    let mut names: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["fleet.0", "fleet.1", "fleet.lock"]);
    for name in names {
        let mode = fs::metadata(directory.join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name:?}");
    }
    assert!(StateStore::is_there(&directory));
}

#[test]
fn a_file_cut_or_mixed_anywhere_gives_way_to_the_former_generation() {
    let folder = folder();
    let mut store = StateStore::open(folder.path()).expect("made");
    assert!(store.write(&1_u32) && store.write(&2_u32));
    drop(store);
    let newest = folder.path().join("fleet.0");
    let [old, new] = ["fleet.1", "fleet.0"].map(|name| fs::read(folder.path().join(name)).unwrap());
    assert_eq!(written(folder.path()), Some(2));
    for cut in 0..new.len() {
        fs::write(&newest, &new[..cut]).unwrap();
        assert_eq!(written(folder.path()), Some(1), "cut at {cut}");
        let zeros = vec![0; new.len() - cut];
        fs::write(&newest, [&new[..cut], &zeros].concat()).unwrap();
        assert_eq!(written(folder.path()), Some(1), "zeros from {cut}");
        let mixed = [&new[..cut], &old[cut..]].concat();
        fs::write(&newest, &mixed).unwrap();
        assert_eq!(written(folder.path()), Some(1), "mixed at {cut}");
    }
    let mut store = StateStore::open(folder.path()).expect("free");
    assert_eq!(store.read::<u32>(), Some(1));
    assert!(store.write(&3_u32));
    assert_eq!(fs::read(folder.path().join("fleet.1")).unwrap(), old);
    drop(store);
    assert_eq!(written(folder.path()), Some(3));
}

#[test]
fn a_disk_without_room_leaves_what_was_there() {
    let folder = folder();
    let mut store = StateStore::open(folder.path()).expect("made");
    assert!(store.write(&1_u32));
    let taken = files::beside(&folder.path().join("fleet.0"));
    fs::create_dir(&taken).unwrap();
    assert!(!store.write(&2_u32) && store.is_failing);
    assert!(!store.write(&2_u32), "each change is tried again");
    fs::remove_dir(&taken).unwrap();
    assert!(store.write(&2_u32) && !store.is_failing);
    drop(store);
    assert_eq!(written(folder.path()), Some(2));
}

#[test]
fn the_key_is_made_once_and_for_its_owner_alone() {
    let folder = folder();
    let store = StateStore::open(folder.path()).expect("made");
    let key = store.key().expect("made").public_key();
    assert_eq!(store.key().expect("read").public_key(), key);
    let path = store.key_path();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(store.key(), Err(StoreError::Exposed { mode: 0o644, .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "half a ke").unwrap();
    assert!(matches!(store.key(), Err(StoreError::Key { .. })), "and is not made anew");
}

#[test]
fn one_program_at_a_time_uses_it() {
    let folder = folder();
    let store = StateStore::open(folder.path()).expect("made");
    assert!(matches!(StateStore::open(folder.path()), Err(StoreError::InUse { .. })));
    drop(store);
    assert!(StateStore::open(folder.path()).is_ok());
}

#[test]
fn a_folder_that_others_may_write_in_is_refused() {
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(StateStore::open(folder.path()), Err(StoreError::File { .. })));
}

#[test]
fn where_nothing_can_be_written_it_is_locked_all_the_same() {
    let folder = folder();
    let refused = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
    let is_free =
        |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    let one = read_only(folder.path(), refused(Errno::ROFS)).expect("the folder");
    let other = read_only(folder.path(), refused(Errno::NOSPC)).expect("the folder");
    assert!(is_free(&one) && !is_free(&other));
    let store = StateStore::open(folder.path()).expect("made");
    let file = read_only(folder.path(), refused(Errno::ACCESS)).expect("the file");
    assert!(!is_free(&file), "a program that could write has it");
    drop(store);
    assert!(is_free(&file));
    assert!(read_only(folder.path(), refused(Errno::LOOP)).is_err());
}
