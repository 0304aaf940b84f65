//! Enumerations with one name for each value.

/// Makes such an enumeration (crates with `serde`); names appear in JSON, files and statistics.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $type:ident {
        $($(#[$about:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$about])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in JSON, in files and in statistics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}
