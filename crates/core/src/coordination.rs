//! How several nodes share a limit, and what happens while they cannot.

/// How several nodes share one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coordination {
    /// The shared store makes every decision. Exact.
    #[default]
    Central,
    /// A node leases a block of units, spends it without asking, and settles it. Never admits too much.
    Lease,
    /// A node counts on its own and exchanges counts with the shared store at an interval. May admit too much, within a bound.
    Sync,
    /// Each node enforces its part of the limit. No shared store.
    Static,
}

impl Coordination {
    /// All kinds of coordination.
    pub const ALL: [Self; 4] = [Self::Central, Self::Lease, Self::Sync, Self::Static];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Central => "central",
            Self::Lease => "lease",
            Self::Sync => "sync",
            Self::Static => "static",
        }
    }
}

/// What happens to a check while the shared store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreFailureMode {
    /// The node enforces a part of the limit on its own.
    #[default]
    Local,
    /// The check passes.
    Allow,
    /// The decision fails; the client gets 503.
    Deny,
}

impl StoreFailureMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}
