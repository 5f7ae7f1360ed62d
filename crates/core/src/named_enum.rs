//! Enums whose values have names.

/// Declares an enum whose values have names, in the policy, in metrics, logs and messages. Values and names are written once,
/// next to each other.
///
/// ```
/// tidegate_core::named_enum! {
///     /// A direction.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub enum Direction {
///         /// Towards the server.
///         Up = "up",
///         /// Towards the client.
///         Down = "down",
///     }
/// }
///
/// assert_eq!(Direction::Down.name(), "down");
/// assert_eq!(Direction::ALL.map(Direction::name), Direction::NAMES);
/// ```
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $visibility:vis enum $type:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        $visibility enum $type {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $type {
            /// All values, in the order of their declaration.
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// The names of [`Self::ALL`].
            $visibility const NAMES: [&'static str; Self::ALL.len()] = [$($name),+];

            /// The name of the value.
            $visibility const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
