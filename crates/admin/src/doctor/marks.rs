//! Foreign rules that copy marks between packets and connections and overwrite Roadweave's bits.
//! iptables (`CONNMARK`), mwan3 and VPN clients restore a packet's mark from its connection, or
//! save it there. Without a mask such a rule replaces the bits by which answers find their uplink.

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overwriting {
    pub(super) place: String,
    pub(super) bits: u32,
    pub(super) ours: u32,
}

pub(super) fn in_ruleset(ruleset: &Value, used: u32) -> Vec<Overwriting> {
    let objects = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rules = objects.iter().map(|object| &object["rule"]);
    let found = rules.filter_map(|rule| {
        let word = |name: &str| rule[name].as_str();
        let table = word("table").filter(|table| !table.starts_with("roadweave_"))?;
        let place = format!("{} {table} {}", word("family")?, word("chain")?);
        let statements = rule["expr"].as_array()?.iter();
        let bits = statements.map(|it| copied(&it["mangle"])).fold(0, |all, bits| all | bits);
        Some((place, bits))
    });
    distinct(found, used)
}

/// The same for the output of `iptables-save`: `nft` does not show the masks of `CONNMARK`.
pub(super) fn in_iptables(family: &str, saved: &str, used: u32) -> Vec<Overwriting> {
    let mut table = "";
    let mut found = Vec::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["-A", chain, rule @ ..] = &words[..] else { continue };
        let is_copy = |word: &&str| ["--save-mark", "--restore-mark"].contains(word);
        if !rule.windows(2).any(|it| it == ["-j", "CONNMARK"]) || !rule.iter().any(is_copy) {
            continue;
        }
        let mask = |name: &str| {
            let at = rule.iter().position(|word| *word == name)?;
            let digits = rule.get(at + 1)?.strip_prefix("0x")?;
            u32::from_str_radix(digits, 16).ok()
        };
        let masks = ["--mask", "--nfmask", "--ctmask"].into_iter().filter_map(mask);
        let bits = masks.reduce(|all, bits| all | bits).unwrap_or(u32::MAX);
        found.push((format!("{family} {table} {chain}"), bits));
    }
    distinct(found.into_iter(), used)
}

fn distinct(found: impl Iterator<Item = (String, u32)>, used: u32) -> Vec<Overwriting> {
    let mut all: Vec<Overwriting> = Vec::new();
    for (place, bits) in found.filter(|(_, bits)| bits & used != 0) {
        match all.iter_mut().find(|known| known.place == place) {
            Some(known) => {
                known.bits |= bits;
                known.ours = known.bits & used;
            }
            None => all.push(Overwriting { place, bits, ours: bits & used }),
        }
    }
    all
}

fn copied(mangle: &Value) -> u32 {
    let [packet, connection] = sources(&mangle["value"]);
    match (is_mark(&mangle["key"], "meta"), is_mark(&mangle["key"], "ct")) {
        (true, _) if connection != 0 => connection | !packet,
        (_, true) if packet != 0 => packet | !connection,
        _ => 0,
    }
}

fn sources(value: &Value) -> [u32; 2] {
    if is_mark(value, "meta") {
        return [u32::MAX, 0];
    }
    if is_mark(value, "ct") {
        return [0, u32::MAX];
    }
    let operands = |name: &str| value[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let united = |operands: &[Value]| {
        operands.iter().map(sources).fold([0; 2], |all, it| [all[0] | it[0], all[1] | it[1]])
    };
    let masked = operands("&");
    let numbers = masked.iter().filter_map(Value::as_u64);
    let mask = numbers.fold(u32::MAX, |all, number| all & number as u32);
    let [packet, connection] = united(masked);
    let either = united(&[operands("|"), operands("^")].concat());
    [packet & mask | either[0], connection & mask | either[1]]
}

fn is_mark(value: &Value, of: &str) -> bool {
    value[of]["key"] == "mark"
}
