//! `roadweave-controller trust`: signs a trust list by a root key, on any machine. A root or spare
//! of the list before signs, and the new root if its key is given: peers of either can follow.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use roadweave_fleet::{Signed, Trust, TrustList};
use roadweave_identity::{Identity, PublicKey};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::controller::folder::{identity, parse_lists};
use crate::files::replace;

/// Whom to trust from now on.
#[derive(clap::Args)]
pub struct Options {
    /// The file of a root key, which signs; may be repeated for a new root key. Needs no controller
    /// on this machine
    #[arg(long = "key", required = true, value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// The existing lists, a trust.json; what is not given here stays as in the last of them
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// A root public key, where chains begin; may be repeated. Default: as in the last list, else
    /// the public key of the first --key. Signatures of a root that is left out become invalid
    #[arg(long = "root", value_name = "PUBLIC-KEY")]
    roots: Vec<PublicKey>,
    /// A spare key, kept apart, that may sign the next list
    #[arg(long = "spare", value_name = "PUBLIC-KEY")]
    spares: Vec<PublicKey>,
    /// The public key of a controller
    #[arg(long = "controller", value_name = "PUBLIC-KEY")]
    controllers: Vec<PublicKey>,
    /// The public key of an approver, whose approval every configuration needs
    #[arg(long = "approver", value_name = "PUBLIC-KEY")]
    approvers: Vec<PublicKey>,
    /// The controller's epoch, which rises when a backup is restored
    #[arg(long)]
    epoch: Option<u64>,
    /// The file for all lists, to copy into the controller's folder
    #[arg(long, default_value = "trust.json", value_name = "FILE")]
    out: PathBuf,
}

pub fn run(options: &Options) -> Result<()> {
    let keys: Vec<Identity> =
        options.keys.iter().map(|path| identity(path)).collect::<Result<_>>()?;
    let mut lists = match &options.from {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    let list = next(options, &keys, &lists)?;
    let dropped = dropped(&list, lists.last());
    let signed = sign(&list, &keys)?;
    check(&lists, &signed)?;
    lists.push(signed);
    let text = serde_json::to_string_pretty(&lists)?;
    replace(&options.out, &format!("{text}\n"))?;
    let roots: Vec<String> = list.roots.iter().map(ToString::to_string).collect();
    out::line(format_args!(
        "{} holds {} lists; the last is number {} of epoch {}.\n\
         Copy it into the controller's folder as trust.json. Without root.key in that folder, \
         root.pub must contain {}.",
        options.out.display(),
        lists.len(),
        list.number,
        list.epoch,
        roots.join(" or ")
    ))?;
    for root in dropped {
        out::line(format_args!(
            "It no longer names {root}: signatures of that key become invalid once this list is in \
             use. Add --root {root} to keep it for now."
        ))?;
    }
    Ok(())
}

fn dropped(list: &TrustList, before: Option<&Signed<TrustList>>) -> Vec<PublicKey> {
    let before = before.and_then(|before| before.verify_by(before.claimed_keys()).ok());
    let roots = before.map(|(before, _)| before.roots).unwrap_or_default();
    roots.into_iter().filter(|root| !list.roots.contains(root)).collect()
}

fn read(path: &Path) -> Result<Vec<Signed<TrustList>>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_lists(path, &text)
}

fn next(options: &Options, keys: &[Identity], lists: &[Signed<TrustList>]) -> Result<TrustList> {
    let last = lists.last().map(|last| last.verify_by(last.claimed_keys())).transpose();
    let last = last.map_err(|error| BadInput::new(format!("the last list: {error}")))?;
    let last = last.map(|(list, _)| list);
    let epoch = options.epoch.or(last.as_ref().map(|last| last.epoch)).unwrap_or(1);
    let mut list = last.unwrap_or_else(|| TrustList {
        number: epoch,
        epoch,
        roots: vec![keys[0].public_key()],
        ..TrustList::default()
    });
    (list.number, list.epoch) = (list.number + 1, epoch);
    let said = [
        (&options.roots, &mut list.roots),
        (&options.spares, &mut list.spares),
        (&options.controllers, &mut list.controllers),
        (&options.approvers, &mut list.approvers),
    ];
    for (said, held) in said {
        if !said.is_empty() {
            held.clone_from(said);
        }
    }
    if list.controllers.is_empty() {
        let message =
            "--controller: at least one key is needed, as `roadweave-controller key` prints it";
        return Err(BadInput::new(message).into());
    }
    Ok(list)
}

fn sign(list: &TrustList, keys: &[Identity]) -> Result<Signed<TrustList>> {
    let mut signed = Signed::sign(list, &keys[0])?;
    let mut done = BTreeSet::from([keys[0].public_key()]);
    for key in &keys[1..] {
        if done.insert(key.public_key()) {
            signed = signed.countersign(key)?;
        }
    }
    Ok(signed)
}

fn check(lists: &[Signed<TrustList>], signed: &Signed<TrustList>) -> Result<()> {
    let read = |list: &Signed<TrustList>| list.verify_by(list.claimed_keys()).map(|(it, _)| it);
    let mut trust = match lists.last() {
        Some(last) => Trust::of(read(last)?),
        None => {
            let list = read(signed)?;
            Trust::of(TrustList { number: list.number - 1, ..list })
        }
    };
    let taken = trust.replace(signed);
    taken.map_err(|error| {
        BadInput::new(format!(
            "boxes would refuse this list: {error}. Sign it by a root or spare of the last one"
        ))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::identity;

    fn options(folder: &Path, keys: &[u8], from: bool) -> Options {
        let keys = keys.iter().map(|seed| {
            let path = folder.join(format!("{seed}.key"));
            let text = format!("{}\n", identity(*seed).to_base64());
            replace(&path, &text).unwrap();
            path
        });
        Options {
            keys: keys.collect(),
            from: from.then(|| folder.join("trust.json")),
            roots: vec![],
            spares: vec![],
            controllers: vec![],
            approvers: vec![],
            epoch: None,
            out: folder.join("trust.json"),
        }
    }

    fn key(seed: u8) -> PublicKey {
        identity(seed).public_key()
    }

    #[test]
    fn a_root_names_a_spare_that_names_another_root_and_boxes_follow() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let no_controller = run(&options(folder, &[1], false));
        assert!(no_controller.unwrap_err().to_string().contains("--controller"));
        let (controllers, spares) = (vec![key(9)], vec![key(2)]);
        run(&Options { controllers, spares, ..options(folder, &[1], false) }).unwrap();
        let strange = run(&Options { roots: vec![key(5)], ..options(folder, &[5], true) });
        assert!(strange.unwrap_err().to_string().contains("boxes would refuse this list"));
        run(&Options { roots: vec![key(3)], ..options(folder, &[2, 3], true) }).unwrap();
        let lists = read(&folder.join("trust.json")).unwrap();
        let (last, _) = lists[1].verify_by(lists[1].claimed_keys()).unwrap();
        assert_eq!(dropped(&last, lists.first()), [key(1)]);
        for pinned in [1, 3] {
            let mut trust = Trust::pinned(key(pinned), key(9));
            lists.iter().for_each(|list| _ = trust.replace(list));
            assert_eq!(trust.list().number, 3, "pinned to {pinned}");
            assert_eq!(trust.roots().collect::<Vec<_>>(), [key(3)]);
        }
    }
}
