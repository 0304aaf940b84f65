//! Merging a fleet's configuration with the program's own file.

/// A configuration merged with the program's own file, which takes precedence.
#[derive(Clone, Debug)]
pub struct Merged<C> {
    /// The fields that can change while the program runs.
    pub reload: C,
    /// The fields that the file overrides.
    pub pinned: Vec<String>,
}

/// Reads the program's file with the controller's fields as defaults; `None`: no such fields.
pub type Merge<C> = Box<dyn FnMut(Option<&str>) -> Result<Merged<C>, String> + Send>;
