//! Checks that commands and options on the pages exist.

use std::path::Path;

use clap::{Arg, Command};

use super::links::{pages, read};

/// Programs that `roadweave` runs and that are built separately.
const OTHERS: [&str; 1] = ["video"];

/// Command lines on a Markdown page, in code blocks and inline code.
fn lines(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    let joined = text.replace("\\\n", " ");
    for line in joined.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            found.push(line.to_owned());
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
        .iter()
        .map(|line| line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo "))
        .filter(|line| line.starts_with("roadweave ") || line.starts_with("roadweave-"))
        .map(str::to_owned)
        .collect()
}

/// A command or option in `line` that does not exist.
fn unknown(line: &str, product: &Command, controller: &Command) -> Option<String> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let fleet = product.find_subcommand("fleet")?;
    let (program, mut top) = match first {
        "roadweave" | "roadweave-lab" | "roadweave-admin" | "roadweave-manual" => (product, true),
        "roadweave-fleet" => (fleet, true),
        "roadweave-controller" => (controller, true),
        _ => return None,
    };
    let mut above = vec![program];
    let mut words = words.take_while(|word| !word.starts_with(['#', '|', '>', '&']));
    while let Some(word) = words.next() {
        let word = word.trim_matches(|edge: char| "[](),.:;'\"".contains(edge));
        // A diagram with a second command beside the first.
        if word.starts_with(first) {
            break;
        }
        let command = *above.last().expect("the program");
        if let Some(option) = word.strip_prefix("--") {
            let name = option.split(['=', '[', '|', '`']).next().unwrap_or_default();
            if name.is_empty() || name == "help" || name == "version" {
                continue;
            }
            match above.iter().find_map(|command| argument(command, name)) {
                None => return Some(format!("--{name} of {}", command.get_name())),
                Some(known) if known.get_action().takes_values() && name == option => {
                    words.next();
                }
                Some(_) => {}
            }
        } else if let Some(below) = command.find_subcommand(word) {
            above.push(below);
            top = below.has_subcommands() && below.get_positionals().next().is_none();
        } else if top && is_command(word) && !OTHERS.contains(&word) {
            return Some(word.to_owned());
        } else {
            top = false;
        }
    }
    None
}

fn argument<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| {
        argument.get_long_and_visible_aliases().unwrap_or_default().contains(&name)
    })
}

/// Whether `word` may be a command rather than a placeholder such as `NAME`.
fn is_command(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
}

fn trees() -> (Command, Command) {
    let (mut product, mut controller) =
        (crate::product(), roadweave_control::controller::command());
    product.build();
    controller.build();
    (product, controller)
}

#[test]
fn what_is_not_there_is_found() {
    let (product, controller) = trees();
    for (line, expected) in [
        ("roadweave client --config client.toml", None),
        ("roadweave show --json | jq .", None),
        ("roadweave --log debug client --config X", None),
        ("roadweave fly", Some("fly")),
        ("roadweave peer fly", Some("fly")),
        ("roadweave client --wings", Some("--wings of client")),
        ("roadweave-controller run --wings", Some("--wings of run")),
    ] {
        assert_eq!(unknown(line, &product, &controller).as_deref(), expected, "{line}");
    }
    let found = lines("So `roadweave fly` is\n\n```sh\nsudo roadweave show \\\n  --wings\n```\n");
    assert_eq!(found, ["roadweave fly", "roadweave show    --wings"]);
}

#[test]
fn pages_name_only_existing_commands_and_options() {
    let (product, controller) = trees();
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages().into_iter().filter(|page| page != Path::new("CHANGELOG.md")) {
        let text = read(&page);
        // Measurements with removed commands remain as results.
        if text.contains("(README.md#code-that-is-gone)") {
            continue;
        }
        for line in lines(&text) {
            count += 1;
            let what = unknown(&line, &product, &controller);
            wrong.extend(what.map(|what| format!("{}: {what}: {line}", page.display())));
        }
    }
    assert!(count > 100, "only {count} commands are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
