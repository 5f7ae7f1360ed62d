//! A limit: an algorithm with its parameters, valid by construction.
//!
//! Every algorithm is one file that implements [`RateAlgorithm`]; the list at the end of this file declares all of them.

use alloc::string::String;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use thiserror::Error;

use crate::decision::Outcome;
use crate::lending::Borrow;
use crate::time::{Tick, TimeSpan, Timestamp};

/// The number of units that a request takes from a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Takes nothing: used to peek.
    pub const ZERO: Self = Self(0);
    /// The cost of an ordinary request.
    pub const ONE: Self = Self(1);

    /// A cost of `units`.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// The cost in units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum of both costs.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// A limit as the operator specified it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Units per window.
    pub requests: u64,
    /// The window.
    pub window: TimeSpan,
    /// Units at once, for algorithms with a burst; `None` selects the algorithm's default.
    pub burst: Option<u64>,
    /// The longest wait of an admitted request, for the leaky bucket; `None` selects its default.
    pub max_wait: Option<TimeSpan>,
    /// Units beyond the burst, for the token bucket.
    pub borrow: Option<Borrow>,
}

impl Spec {
    /// `requests` per `window`, with the algorithm's defaults.
    pub fn new(requests: u64, window: impl Into<TimeSpan>) -> Self {
        Self { requests, window: window.into(), burst: None, max_wait: None, borrow: None }
    }

    pub(crate) fn validate(&self) -> Result<(), LimitError> {
        match self {
            Self { requests: 0, .. } => Err(LimitError::ZeroRequests),
            Self { window, .. } if window.is_zero() => Err(LimitError::ZeroWindow),
            _ => Ok(()),
        }
    }

    /// Rejects what an algorithm without a burst does not have.
    pub(crate) fn reject_burst(&self, algorithm: Algorithm) -> Result<(), LimitError> {
        if self.burst.is_some() {
            return Err(LimitError::NoBurst { algorithm });
        }
        self.reject_max_wait(algorithm)?;
        self.reject_borrow(algorithm)
    }

    /// Rejects borrowed units for an algorithm that lends none.
    pub(crate) fn reject_borrow(&self, algorithm: Algorithm) -> Result<(), LimitError> {
        if self.borrow.is_some() { Err(LimitError::NoBorrow { algorithm }) } else { Ok(()) }
    }

    /// Rejects a longest wait for an algorithm under which no request waits.
    pub(crate) fn reject_max_wait(&self, algorithm: Algorithm) -> Result<(), LimitError> {
        if self.max_wait.is_some() { Err(LimitError::NoMaxWait { algorithm }) } else { Ok(()) }
    }

    /// The specified burst, or `requests`.
    pub(crate) fn burst(&self) -> Result<u64, LimitError> {
        match self.burst {
            Some(0) => Err(LimitError::ZeroBurst),
            Some(burst) => Ok(burst),
            None => Ok(self.requests),
        }
    }

    /// The specified units beyond the burst.
    pub(crate) fn borrow(&self) -> Result<Option<Borrow>, LimitError> {
        match self.borrow {
            Some(Borrow { units: 0, .. } | Borrow { repay: 0, .. }) => Err(LimitError::ZeroBorrow),
            borrow => Ok(borrow),
        }
    }

    pub(crate) fn not_representable(&self) -> LimitError {
        LimitError::NotRepresentable {
            requests: self.requests,
            window: self.window,
            capacity: self.burst.unwrap_or(self.requests),
        }
    }
}

/// Why a limit is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// Zero requests.
    #[error("`requests` is 0, so no request would be admitted; use at least 1")]
    ZeroRequests,
    /// A window of zero length.
    #[error("`window` is 0; use at least 1 µs, usually seconds or minutes")]
    ZeroWindow,
    /// Zero burst.
    #[error("`burst` is 0, so no request would be admitted; use at least 1")]
    ZeroBurst,
    /// A burst for an algorithm without one.
    #[error("`{algorithm}` does not support `burst`; remove it, or use token_bucket or leaky_bucket")]
    NoBurst {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// A longest wait for an algorithm under which no request waits.
    #[error("`{algorithm}` does not support `max_wait`; remove it, or use leaky_bucket")]
    NoMaxWait {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Nothing to borrow, or nothing to repay.
    #[error("`units` and `repay` of `borrow` must be at least 1")]
    ZeroBorrow,
    /// Borrowed units for an algorithm that lends none.
    #[error("`{algorithm}` does not support `borrow`; remove it, or use token_bucket")]
    NoBorrow {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// No tick keeps the arithmetic exact.
    #[error(
        "{requests} per {window:?} with {capacity} at once cannot be counted exactly; \
         use fewer requests, a shorter window or rounder numbers"
    )]
    NotRepresentable {
        /// Units per window.
        requests: u64,
        /// The window.
        window: TimeSpan,
        /// Units at once.
        capacity: u64,
    },
}

/// A rate-limiting algorithm. The implementing type holds the parameters; `State` is what is stored per key.
///
/// All algorithms: a cost of 0 peeks; a cost above the capacity is `Never`; time that goes backwards refills nothing;
/// overflow saturates towards rejection; nothing panics.
pub trait RateAlgorithm: Copy {
    /// The algorithm's name.
    const ALGORITHM: Algorithm;
    /// The state of a key; the default is an unused key.
    type State: Clone + Default;

    /// Creates the limit that an operator specified.
    fn new(spec: &Spec) -> Result<Self, LimitError>;

    /// The largest cost that can fit; clients see it as the limit.
    fn capacity(&self) -> u64;

    /// The resolution in which the algorithm measures time.
    fn tick(&self) -> Tick;

    /// Checks whether `cost` fits at `now` without changing the state. If it fits, `remaining` and `reset_after` are those
    /// after the charge.
    fn evaluate(&self, state: &Self::State, now: Timestamp, cost: Cost) -> Outcome;

    /// Charges `cost`, even if it does not fit (overage).
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: Cost);

    /// Gives back the part of `cost` that the state still contains. `charged` is when the charged request was scheduled: the
    /// time of its decision plus its `wait`. Returns whether it contained any.
    fn refund(&self, state: &mut Self::State, charged: Timestamp, now: Timestamp, cost: Cost) -> bool;

    /// Converts the state of a key last counted under `old`. The spent units stay spent.
    fn rebase(&self, old: &Self, state: Self::State, now: Timestamp) -> Self::State;

    /// The spent units that still count at `now`, rounded up to whole units.
    fn used(&self, state: &Self::State, now: Timestamp) -> u64;

    /// Whether the state equals an unused one from `now` on.
    fn is_fresh(&self, state: &Self::State, now: Timestamp) -> bool;

    /// Packs the state into one word of at most [`WORD_MAX`], with times relative to `origin`; `None` if it does not fit.
    /// The default implementation packs nothing.
    fn pack(&self, _state: &Self::State, _origin: Timestamp) -> Option<u64> {
        None
    }

    /// Unpacks a state packed by [`pack`](Self::pack).
    fn unpack(&self, _word: u64, _origin: Timestamp) -> Self::State {
        Self::State::default()
    }

    /// Evaluates and charges `cost` on a packed state; `None` if a word cannot represent the result.
    #[inline]
    fn step_word(&self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost) -> Option<StepResult> {
        step_unpacked(self, (word, origin), now, cost)
    }

    /// The heap bytes of a state.
    fn heap_bytes(_state: &Self::State) -> usize {
        0
    }

    /// Makes room in a state for one more charge without allocating. Precision is lost only towards rejection.
    fn make_room(_state: &mut Self::State) {}
}

/// Evaluates and charges `cost` on a packed state that is unpacked first.
#[inline]
pub(crate) fn step_unpacked<M: RateAlgorithm>(
    algorithm: &M,
    (word, origin): (u64, Timestamp),
    now: Timestamp,
    cost: Cost,
) -> Option<StepResult> {
    let mut state = algorithm.unpack(word, origin);
    let outcome = algorithm.evaluate(&state, now, cost);
    if !outcome.verdict.is_pass() || cost == Cost::ZERO {
        return Some(StepResult { outcome, next: word });
    }
    algorithm.charge(&mut state, now, cost);
    Some(StepResult { outcome, next: algorithm.pack(&state, origin)? })
}

/// The result of a step on a packed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// The outcome.
    pub outcome: Outcome,
    /// If the cost fits, the next packed state.
    pub next: u64,
}

/// The largest packed state: two bits of a word are left to its owner.
pub const WORD_MAX: u64 = (1 << 62) - 1;

/// Computes a stable hash of a limit's parameters.
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiply and fold: every input bit affects every bit of the hash.
        let product = u128::from(self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let [low, high] = [product, product >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)));
        self.0 = low.unwrap_or_default() ^ high.unwrap_or_default().rotate_left(23);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// An operation on a limit whose algorithm is statically known; compiled once per algorithm.
pub trait AlgorithmVisitor {
    /// The result.
    type Output;

    /// Runs the operation.
    fn visit<M: RateAlgorithm>(self, algorithm: &M) -> Self::Output;
}

/// Declares the algorithms: their names, and [`Limit`] and [`CounterState`] with one variant each.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident => $module:ident, $name:literal;)+) => {
        /// The algorithms by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $variant,)+
        }

        /// All names, each on its own line.
        const NAMES: &str = concat!($("\n  ", $name),+);

        impl Algorithm {
            /// All algorithms.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name used in configuration.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        /// The parameters of one of the algorithms.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AlgorithmKind {
            $($(#[$doc])* $variant(crate::$module::$variant),)+
        }

        /// The state of a key under a [`Limit`]; the default is an unused key.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub enum CounterState {
            /// An unused key.
            #[default]
            Unseen,
            $($(#[$doc])* $variant(<crate::$module::$variant as RateAlgorithm>::State),)+
        }

        impl CounterState {
            /// The heap bytes of the state.
            pub fn heap_bytes(&self) -> usize {
                match self {
                    Self::Unseen => 0,
                    $(Self::$variant(state) => <crate::$module::$variant as RateAlgorithm>::heap_bytes(state),)+
                }
            }

            /// Makes room for one more charge without allocating. Precision is lost only towards rejection.
            pub fn make_room(&mut self) {
                match self {
                    Self::Unseen => {}
                    $(Self::$variant(state) => <crate::$module::$variant as RateAlgorithm>::make_room(state),)+
                }
            }
        }

        impl Limit {
            /// Creates the limit that an operator specified.
            pub fn new(algorithm: Algorithm, spec: Spec) -> Result<Self, LimitError> {
                let kind = match algorithm {
                    $(Algorithm::$variant => AlgorithmKind::$variant(RateAlgorithm::new(&spec)?),)+
                };
                Ok(Self::from(kind))
            }

            /// The algorithm.
            pub const fn algorithm(&self) -> Algorithm {
                match &self.kind { $(AlgorithmKind::$variant(_) => Algorithm::$variant,)+ }
            }

            /// Calls `visitor` with the algorithm's own type.
            #[inline]
            pub fn visit<V: AlgorithmVisitor>(&self, visitor: V) -> V::Output {
                match &self.kind { $(AlgorithmKind::$variant(limit) => visitor.visit(limit),)+ }
            }

            /// The largest cost that can fit; clients see it as the limit.
            pub fn capacity(&self) -> u64 {
                match &self.kind { $(AlgorithmKind::$variant(limit) => limit.capacity(),)+ }
            }

            /// The resolution in which the limit measures time.
            pub fn tick(&self) -> Tick {
                match &self.kind { $(AlgorithmKind::$variant(limit) => limit.tick(),)+ }
            }

            /// Checks whether `cost` fits at `now` without changing the state. If it fits, `remaining` and `reset_after`
            /// are those after the charge. A state of another algorithm counts as unused.
            pub fn evaluate(&self, state: &CounterState, now: Timestamp, cost: Cost) -> Outcome {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.evaluate(state, now, cost),
                    (AlgorithmKind::$variant(limit), _) => limit.evaluate(&Default::default(), now, cost),)+
                }
            }

            /// Charges `cost`, even if it does not fit (overage). A cost of 0 changes nothing.
            pub fn charge(&self, state: &mut CounterState, now: Timestamp, cost: Cost) {
                if cost == Cost::ZERO {
                    return;
                }
                match &self.kind {
                    $(AlgorithmKind::$variant(limit) => {
                        if !matches!(state, CounterState::$variant(_)) {
                            *state = CounterState::$variant(Default::default());
                        }
                        if let CounterState::$variant(state) = state {
                            limit.charge(state, now, cost);
                        }
                    })+
                }
            }

            /// Gives back the part of `cost` that the state still contains. `charged` is when the charged request was
            /// scheduled: the time of its decision plus its `wait`. Returns whether it contained any.
            pub fn refund(&self, state: &mut CounterState, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.refund(state, charged, now, cost),)+
                    _ => false,
                }
            }

            /// Converts the state of a key last counted under `old`. The spent units stay spent; a changed algorithm starts
            /// with an unused state.
            pub fn rebase(&self, old: &Self, state: CounterState, now: Timestamp) -> CounterState {
                match (&self.kind, &old.kind, state) {
                    $((AlgorithmKind::$variant(new), AlgorithmKind::$variant(old), CounterState::$variant(state)) => {
                        CounterState::$variant(new.rebase(old, state, now))
                    })+
                    _ => CounterState::Unseen,
                }
            }

            /// The spent units that still count at `now`, rounded up to whole units. More than the capacity if units were
            /// charged that did not fit.
            pub fn used(&self, state: &CounterState, now: Timestamp) -> u64 {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.used(state, now),)+
                    _ => 0,
                }
            }

            /// Whether the state equals an unused one from `now` on.
            pub fn is_fresh(&self, state: &CounterState, now: Timestamp) -> bool {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.is_fresh(state, now),)+
                    _ => true,
                }
            }

            /// Packs the state into one word of at most [`WORD_MAX`], with times relative to `origin`, if it fits.
            pub fn pack(&self, state: &CounterState, origin: Timestamp) -> Option<u64> {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.pack(state, origin),)+
                    _ => None,
                }
            }

            /// Unpacks a state packed by [`pack`](Self::pack).
            pub fn unpack(&self, word: u64, origin: Timestamp) -> CounterState {
                match &self.kind {
                    $(AlgorithmKind::$variant(limit) => CounterState::$variant(limit.unpack(word, origin)),)+
                }
            }

            /// Evaluates and charges `cost` on a packed state; `None` if a word cannot represent the result.
            pub fn step_word(
                &self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost,
            ) -> Option<StepResult> {
                match &self.kind {
                    $(AlgorithmKind::$variant(limit) => limit.step_word(word, origin, now, cost),)+
                }
            }
        }
    };
}

algorithms! {
    /// Steady refill with bursts.
    TokenBucket => token_bucket, "token_bucket";
    /// A queue with evenly spaced departures.
    LeakyBucket => leaky_bucket, "leaky_bucket";
    /// One count per aligned window.
    FixedWindow => fixed_window, "fixed_window";
    /// The time of every admission: exact.
    SlidingLog => sliding_log, "sliding_window_log";
    /// Two counts that approximate a sliding window.
    SlidingCounter => sliding_counter, "sliding_window_counter";
}

/// An algorithm with its parameters, valid by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    kind: AlgorithmKind,
    fingerprint: u64,
}

impl From<AlgorithmKind> for Limit {
    fn from(kind: AlgorithmKind) -> Self {
        let mut hasher = FingerprintHasher(0);
        kind.hash(&mut hasher);
        Self { kind, fingerprint: hasher.finish() }
    }
}

impl Limit {
    /// The parameters.
    pub const fn kind(&self) -> &AlgorithmKind {
        &self.kind
    }

    /// Whether it is a token bucket that lends units beyond its burst.
    pub fn lends(&self) -> bool {
        matches!(&self.kind, AlgorithmKind::TokenBucket(bucket) if bucket.borrow().is_some())
    }

    /// A hash of the parameters: equal limits have equal fingerprints.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Evaluates `cost`, and charges it if it fits.
    pub fn step(&self, state: &mut CounterState, now: Timestamp, cost: Cost) -> Outcome {
        let outcome = self.evaluate(state, now, cost);
        if outcome.verdict.is_pass() {
            self.charge(state, now, cost);
        }
        outcome
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown algorithm name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown algorithm `{name}`; use one of{NAMES}")]
pub struct UnknownAlgorithm {
    /// The name.
    pub name: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .iter()
            .copied()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm { name: name.into() })
    }
}
