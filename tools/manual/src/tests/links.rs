//! Checks the links of the pages, and that the book contains each page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::fields::slug;

const OUTSIDE: [&str; 4] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// All pages, by their paths below the repository.
pub(crate) fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = OUTSIDE.iter().map(PathBuf::from).collect();
    for folder in ["docs", "tools/experiments"] {
        let names = fs::read_dir(root().join(folder)).expect(folder).flatten();
        let names = names.map(|entry| Path::new(folder).join(entry.file_name()));
        pages.extend(names.filter(|name| name.extension().is_some_and(|it| it == "md")));
    }
    pages
}

pub(crate) fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page:?}: {error}"))
}

/// `text` without code: blocks and inline code, also across line breaks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence
    });
    let lines: Vec<&str> = lines.collect();
    lines.join("\n").split("\n\n").flat_map(|part| part.split('`').step_by(2)).collect()
}

/// The targets of a page's links, also across line breaks.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let found = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let found = found.map(|(target, _)| target.to_owned());
    found.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// The anchors of a page; the second of two equal headings ends with `-1`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code || !line.starts_with('#') {
            continue;
        }
        let name = slug(line.trim_start_matches('#').trim());
        let mut unique = name.clone();
        for number in 1.. {
            if anchors.insert(unique.clone()) {
                break;
            }
            unique = format!("{name}-{number}");
        }
    }
    anchors
}

/// `target` relative to `page`, below the repository; `None` if it is outside of it.
fn resolve(page: &Path, target: &str) -> Option<PathBuf> {
    let mut path = page.parent()?.to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if !path.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

fn fault(page: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = (if file.is_empty() { Some(page.to_path_buf()) } else { resolve(page, file) })
    else {
        return Some("leads out of the repository".to_owned());
    };
    if !root().join(&path).is_file() {
        return Some("leads to no file".to_owned());
    }
    let is_page = path.extension().is_some_and(|it| it == "md");
    let is_there = anchor.is_empty() || is_page && anchors(&read(&path)).contains(anchor);
    (!is_there).then(|| "leads to no heading".to_owned())
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages() {
        for target in targets(&read(&page)) {
            count += 1;
            let fault = fault(&page, &target);
            wrong.extend(fault.map(|what| format!("{}: {target} {what}", page.display())));
        }
    }
    assert!(count > 200, "only {count} links are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_link_to_nowhere_is_found() {
    let page = Path::new("docs/operate.md");
    for good in ["wire.md", "../README.md", "#prometheus", "../LICENSE", "lab.md#what-it-is-not"] {
        let expected = (good == "lab.md#what-it-is-not").then(|| "leads to no heading".to_owned());
        assert_eq!(fault(page, good), expected, "{good}");
    }
    for bad in ["none.md", "../docs", "../../etc/hosts", "/etc/hosts", "#nowhere", "../LICENSE#a"] {
        assert!(fault(page, bad).is_some(), "{bad}");
    }
    let text = "[a](b.md)\n`[c\n](d.md)`\n\n`\n\n[b](c.md)\n```\n[e](f.md)\n```\n[g\nh](i.md#j) [k](https://l.example)";
    assert_eq!(targets(text), ["b.md", "c.md", "i.md#j"]);
    assert_eq!(
        anchors("# A b\n## A b\n```\n# c\n```\n"),
        ["a-b", "a-b-1"].map(str::to_owned).into()
    );
}

#[test]
fn the_book_has_every_page_once() {
    let summary = Path::new("docs/SUMMARY.md");
    let text = read(summary);
    let listed: Vec<PathBuf> = targets(&text)
        .iter()
        .map(|target| resolve(summary, target).unwrap_or_else(|| panic!("{target}")))
        .collect();
    let all: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(all.len(), listed.len(), "a page is listed twice");
    let pages: BTreeSet<PathBuf> = pages().into_iter().filter(|page| page != summary).collect();
    let odd: Vec<_> = all.symmetric_difference(&pages).collect();
    assert!(odd.is_empty(), "in docs/SUMMARY.md or a page, but not both: {odd:?}");
}

/// All Rust files below a folder, by their paths below the repository.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(folder)).expect("a folder").flatten() {
        let path = folder.join(entry.file_name());
        match entry.file_type().is_ok_and(|it| it.is_dir()) {
            true if entry.file_name() != "node_modules" => sources(&path, found),
            true => {}
            false => {
                found.extend(path.to_str().filter(|it| it.ends_with(".rs")).map(str::to_owned))
            }
        }
    }
}

/// The paths that `{a,b}` in `path` stands for.
fn alternatives(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (names, after) = rest.split_once('}').expect("braces are closed");
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}

#[test]
fn the_files_of_the_walks_exist() {
    let mut files = Vec::new();
    ["crates", "tools"].iter().for_each(|folder| sources(Path::new(folder), &mut files));
    let text = read(Path::new("docs/ARCHITECTURE.md"));
    let named = text.split('`').skip(1).step_by(2).filter(|it| it.ends_with(".rs"));
    let named: Vec<String> = named.flat_map(alternatives).collect();
    assert!(named.len() > 80, "only {} files are named", named.len());
    let is_there = |name: &&String| {
        files.iter().any(|file| file == *name || file.ends_with(&format!("/{name}")))
    };
    let gone: Vec<&String> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(gone.is_empty(), "docs/ARCHITECTURE.md names files that are gone: {gone:?}");
}
