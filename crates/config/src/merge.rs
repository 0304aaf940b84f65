//! Merges a client's file with the fields that its fleet's controller sets.
//!
//! ```text
//! client.toml: has precedence ──────────────┐
//! controller: fields of a short list ─► where the file has none ─► validated as one file
//! ```
//!
//! No listed field leads traffic out of the tunnel, names a server or holds a key: a stolen
//! controller can only slow a box. Nor are uplinks listed: strangers in others would be inside.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};
use zeroize::Zeroizing;

use crate::client::ClientFile;
use crate::reader::check;
use crate::{Fault, FileError, Validate, parse};

/// All may change while the client runs.
const FIELDS: [&str; 2] = ["lanes", "uplinks.policies"];
const NAME: &str = "the controller's configuration";

/// A client's merged settings.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The merged file.
    pub file: ClientFile,
    /// The fields that the file sets to other values than the controller.
    pub pinned: Vec<String>,
}

/// Merges `text`, the client's file at `path`, with the fields of `remote` that it lacks.
///
/// # Errors
/// The first fault of the file, or else of the controller's fields: with line, column and field.
pub fn merge(path: &Path, text: &str, remote: Option<&str>) -> Result<Merged, FileError> {
    let local: ClientFile = check(path, text)?;
    let Some(remote) = remote else { return Ok(Merged { file: local, pinned: Vec::new() }) };
    let (there, fields) = (Path::new(NAME), parse::<Table>(Path::new(NAME), remote)?);
    check_fields(&fields).map_err(|fault| fault.in_file(there, remote))?;
    parse::<ClientFile>(there, remote)?;
    let mut table: Table = parse(path, text)?;
    if let Some(Value::String(key)) = table.remove("private_key") {
        drop(Zeroizing::new(key));
    }
    let mut pinned = Vec::new();
    for field in FIELDS {
        let Some(theirs) = find(&fields, field) else { continue };
        match find(&table, field) {
            Some(ours) if ours == theirs => {}
            Some(_) => pinned.push(field.to_owned()),
            None => insert(&mut table, field, theirs.clone()),
        }
    }
    let file = ClientFile::deserialize(Value::Table(table)).map_err(|error| {
        FileError::Invalid { path: there.to_owned(), message: error.to_string() }
    })?;
    let file = ClientFile { private_key: local.private_key, ..file };
    // Reports a conflict at the source that caused it.
    file.validate().map_err(|fault| match find_top(&fields, &fault.field) {
        true => fault.in_file(there, remote),
        false => {
            let message = format!("together with {}: {}", path.display(), fault.message);
            Fault { message, ..fault }.in_file(there, remote)
        }
    })?;
    Ok(Merged { file, pinned })
}

fn check_fields(fields: &Table) -> Result<(), Fault> {
    for (name, value) in fields {
        let of_table = FIELDS.iter().any(|field| field.split('.').next() == Some(name));
        let inner = match value {
            Value::Table(table) if of_table => table.keys().cloned().collect(),
            _ => Vec::new(),
        };
        let paths = match inner.is_empty() {
            true => vec![name.clone()],
            false => inner.iter().map(|inner| format!("{name}.{inner}")).collect(),
        };
        let is_on_list = |path: &String| FIELDS.contains(&path.as_str());
        if let Some(path) = paths.into_iter().find(|path| !is_on_list(path)) {
            let message = format!(
                "{path} can only be set by the file of this client; a controller may set {}",
                FIELDS.join(", ")
            );
            return Err(Fault::new(path, message));
        }
    }
    Ok(())
}

fn find<'a>(table: &'a Table, field: &str) -> Option<&'a Value> {
    match field.split_once('.') {
        None => table.get(field),
        Some((outer, inner)) => table.get(outer)?.as_table()?.get(inner),
    }
}

fn find_top(table: &Table, field: &str) -> bool {
    FIELDS.iter().any(|known| field.starts_with(known) && find(table, known).is_some())
}

fn insert(table: &mut Table, field: &str, value: Value) {
    match field.split_once('.') {
        None => _ = table.insert(field.to_owned(), value),
        Some((outer, inner)) => {
            let outer = table.entry(outer).or_insert_with(|| Value::Table(Table::new()));
            if let Some(outer) = outer.as_table_mut() {
                outer.insert(inner.to_owned(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalNetworks;

    fn merged(local: &str, remote: &str) -> Result<Merged, String> {
        merge(Path::new("client.toml"), local, Some(remote)).map_err(|error| error.to_string())
    }

    const LANES: &str = "[[lanes]]\nname = \"video\"\nstrategy = \"minrtt\"\n";

    #[test]
    fn a_file_that_says_nothing_wins_nothing_and_one_that_does_wins_by_the_field() {
        let policy = |name: &str| format!("[[uplinks.policies]]\nname = \"{name}\"\n");
        let remote = format!("{LANES}{}", policy("eth9"));
        let all = merged("", &remote).expect("taken");
        assert_eq!(all.file.lanes[0].name, "video");
        assert_eq!((all.file.uplinks.policies.len(), all.pinned), (1, vec![]));
        let local = format!("[uplinks]\nexclude = [\"eth1\"]\nlocal = false\n{}", policy("eth1"));
        let some = merged(&local, &remote).expect("taken");
        assert_eq!(some.file.uplinks.exclude, ["eth1"]);
        assert_eq!((some.file.lanes.len(), some.file.uplinks.local), (1, LocalNetworks::None));
        assert_eq!(some.pinned, ["uplinks.policies"]);
        let same = merged(&policy("eth9"), &remote).expect("taken");
        assert_eq!(same.pinned, [""; 0]);
    }

    #[test]
    fn a_bad_controller_sets_neither_routes_nor_keys_nor_servers() {
        let refused = |remote: &str, field: &str| {
            let error = merged("", remote).expect_err("refused");
            let says = "line 1, column ";
            assert!(error.contains(says) && error.contains(field), "{error}");
            assert!(error.contains("can only be set by the file of this client"), "{error}");
        };
        refused("routes = { into_tunnel = [] }", "routes");
        refused("private_key = \"x\"", "private_key");
        refused("server = { addresses = [\"a:1\"] }", "server");
        refused("uplinks = { local = true }", "uplinks.local");
        refused("uplinks = { policies = [], forward = true }", "uplinks.forward");
        refused("uplinks = { exclude = [\"wlan0\"] }", "uplinks.exclude");
        refused("uplinks = { include = [\"wwan0\"] }", "uplinks.include");
        refused("state_directory = \"/\"", "state_directory");
        refused("dns = [\"192.0.2.1\"]", "dns");
    }

    #[test]
    fn errors_name_field_and_line() {
        let check = |local: &str, remote: &str, parts: &[&str]| {
            let error = merged(local, remote).expect_err("refused");
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        };
        let name = "the controller's configuration";
        check("", "[[lanes]]\nname = 7", &[name, "line 2", "name"]);
        check("", "lanes = [", &[name, "line 1"]);
        check("", "[[lanes]]\nname = \"a\"\nstrategy = \"best\"", &[name, "line 3", "strategy"]);
        let nameless = "[[uplinks.policies]]\nname = \"\"";
        check("", nameless, &[name, "line 2", "uplinks.policies.name is empty"]);
        let lane = "[[lanes]]\nname = \"a\"\nstrategy = \"single:wwan0\"\n";
        check("[uplinks]\nexclude = [\"wwan0\"]", lane, &[name, "line 3", "wwan0"]);
        let error = merged("lanes = 1", "lanes = 2").expect_err("refused");
        assert!(error.contains("client.toml"), "{error}");
    }

    #[test]
    fn the_key_of_the_file_stays() {
        let local = format!("private_key = \"{}\"\n", crate::tests::PRIVATE);
        assert!(!merged(&local, LANES).expect("taken").file.private_key.is_empty());
    }
}
