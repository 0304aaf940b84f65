//! What a configuration comes to, together with the program's own file.

/// A configuration merged with the program's own file, which wins.
#[derive(Clone, Debug)]
pub struct Merged<C> {
    /// What may change while the program runs.
    pub reload: C,
    /// The fields that the file sets otherwise.
    pub pinned: Vec<String>,
}

/// Reads the program's file with the fields of a controller below it, none if there are none.
pub type Merge<C> = Box<dyn FnMut(Option<&str>) -> Result<Merged<C>, String> + Send>;
