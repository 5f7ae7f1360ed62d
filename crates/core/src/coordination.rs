//! How several nodes share a limit, and what happens while they cannot.

named_enum! {
    /// How several nodes share one limit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Coordination {
        /// The shared store makes every decision. Exact.
        #[default]
        Central = "central",
        /// A node leases a block of units, spends it without asking, and settles it. Never admits too much.
        Lease = "lease",
        /// A node counts on its own and exchanges counts with the shared store at an interval. May admit too much, within a bound.
        Sync = "sync",
        /// Each node enforces its part of the limit. No shared store.
        Static = "static",
    }
}

named_enum! {
    /// What happens to a check while the shared store fails.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum StoreFailureMode {
        /// The node enforces a part of the limit on its own.
        #[default]
        Local = "local",
        /// The check passes.
        Allow = "allow",
        /// The decision fails; the client gets 503.
        Deny = "deny",
    }
}
