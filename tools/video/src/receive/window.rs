//! Checks that a window can show pictures: else GStreamer silently discards them or draws text.

use std::env;

use gstreamer as gst;
use roadweave_terminal::exit::BadInput;

/// Fails without a display, or reports the missing package.
pub fn check() -> Result<(), BadInput> {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_there = |name: &&str| gst::ElementFactory::find(name).is_some();
    can_show(is_set("DISPLAY"), is_set("WAYLAND_DISPLAY"), |sinks| sinks.iter().any(is_there))
}

fn can_show(x11: bool, wayland: bool, has_any: impl Fn(&[&str]) -> bool) -> Result<(), BadInput> {
    let problem = match (x11, wayland) {
        (false, false) => "no display: DISPLAY and WAYLAND_DISPLAY are not set".to_owned(),
        _ if x11 && has_any(&X11) || wayland && has_any(&WAYLAND) => return Ok(()),
        (true, _) => format!("GStreamer has no {}: apt install gstreamer1.0-x", X11[0]),
        _ => {
            let plugin = WAYLAND[0];
            format!("GStreamer has no {plugin}: apt install gstreamer1.0-plugins-bad")
        }
    };
    Err(BadInput::new(format!("--window: {problem}")))
}

const X11: [&str; 3] = ["ximagesink", "xvimagesink", "glimagesink"];
const WAYLAND: [&str; 2] = ["waylandsink", "glimagesink"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_needs_a_display_and_what_draws_on_it() {
        let check = |x11, wayland, there: &'static str, said: &str| {
            let result = can_show(x11, wayland, |sinks| sinks.contains(&there));
            match result {
                Ok(()) => assert!(said.is_empty(), "{there}"),
                Err(error) => assert!(!said.is_empty() && error.to_string().contains(said)),
            }
        };
        check(true, false, "ximagesink", "");
        check(false, true, "waylandsink", "");
        check(true, true, "waylandsink", "");
        check(true, false, "waylandsink", "apt install gstreamer1.0-x");
        check(false, true, "ximagesink", "apt install gstreamer1.0-plugins-bad");
        check(false, false, "ximagesink", "no display:");
    }
}
