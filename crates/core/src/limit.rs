//! A limit: an algorithm with its parameters, valid by construction.
//!
//! Every algorithm is one file that implements [`RateAlgorithm`]; the list at the end of this one makes it known.

use alloc::string::String;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use thiserror::Error;

use crate::decision::Outcome;
use crate::time::{Tick, TimeSpan, Timestamp};

/// How much a request takes from a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Takes nothing: a peek.
    pub const ZERO: Self = Self(0);
    /// What an ordinary request takes.
    pub const ONE: Self = Self(1);

    /// A cost of `units`.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// The cost in units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Both costs together.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// What an operator says of a limit: so many requests per window, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Units per window.
    pub requests: u64,
    /// The window.
    pub window: TimeSpan,
    /// Units at once, for the algorithms that know a burst; `None` takes the algorithm's default.
    pub burst: Option<u64>,
    /// The longest wait of an admitted request, for the algorithm that knows one; `None` takes its default.
    pub max_wait: Option<TimeSpan>,
}

impl Spec {
    /// `requests` per `window`, the rest left to the algorithm.
    pub const fn new(requests: u64, window: TimeSpan) -> Self {
        Self { requests, window, burst: None, max_wait: None }
    }

    pub(crate) fn validate(&self) -> Result<(), LimitError> {
        match self {
            Self { requests: 0, .. } => Err(LimitError::ZeroRequests),
            Self { window, .. } if window.is_zero() => Err(LimitError::ZeroWindow),
            _ => Ok(()),
        }
    }

    /// Rejects a burst or a longest wait for an algorithm that knows neither.
    pub(crate) fn reject_burst(&self, algorithm: Algorithm) -> Result<(), LimitError> {
        if self.burst.is_some() {
            return Err(LimitError::NoBurst { algorithm });
        }
        self.reject_max_wait(algorithm)
    }

    /// Rejects a longest wait for an algorithm under which no request waits.
    pub(crate) fn reject_max_wait(&self, algorithm: Algorithm) -> Result<(), LimitError> {
        if self.max_wait.is_some() { Err(LimitError::NoMaxWait { algorithm }) } else { Ok(()) }
    }

    /// The burst as written, or `requests`.
    pub(crate) fn burst(&self) -> Result<u64, LimitError> {
        match self.burst {
            Some(0) => Err(LimitError::ZeroBurst),
            Some(burst) => Ok(burst),
            None => Ok(self.requests),
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

/// Why a limit cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// A limit of nothing.
    #[error("`requests` is 0: nothing would ever pass; use at least 1")]
    ZeroRequests,
    /// A window without length.
    #[error("`window` is 0: use at least 1 µs, usually seconds or minutes")]
    ZeroWindow,
    /// A bucket of no size.
    #[error("`burst` is 0: nothing would ever pass; use at least 1")]
    ZeroBurst,
    /// A burst for an algorithm that has none.
    #[error("`{algorithm}` takes no `burst`; remove it, or use token_bucket or leaky_bucket")]
    NoBurst {
        /// The algorithm that was given one.
        algorithm: Algorithm,
    },
    /// A longest wait for an algorithm under which no request waits.
    #[error("`{algorithm}` takes no `max_wait`; remove it, or use leaky_bucket")]
    NoMaxWait {
        /// The algorithm that was given one.
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

/// What every algorithm does. Parameters are the implementor; what is remembered per key is the `CounterState`.
///
/// For all of them: a cost of 0 peeks; a cost that could never fit is `Never`; time that goes backwards
/// refills nothing; whatever overflows saturates towards refusal; nothing panics.
pub trait RateAlgorithm: Copy {
    /// The algorithm's name.
    const ALGORITHM: Algorithm;
    /// What is remembered of a key; the default is a key never seen.
    type State: Clone + Default;

    /// The limit an operator specified, or why it cannot be.
    fn new(spec: &Spec) -> Result<Self, LimitError>;

    /// The largest cost that could ever fit; what clients are shown as the limit.
    fn capacity(&self) -> u64;

    /// The step in which it sees time.
    fn tick(&self) -> Tick;

    /// Whether `cost` fits at `now`, changing nothing. Where it fits, `remaining` and `reset_after` are
    /// those after it was charged.
    fn evaluate(&self, state: &Self::State, now: Timestamp, cost: Cost) -> Outcome;

    /// Records `cost`, also one that does not fit (overage).
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: Cost);

    /// Gives back what the state still holds of `cost`. `charged` is when the charged request was to pass:
    /// the time of its decision plus its own `wait`.
    fn refund(&self, state: &mut Self::State, charged: Timestamp, now: Timestamp, cost: Cost);

    /// The state under this limit of a key last counted under `old`: what is spent stays spent.
    fn rebase(&self, old: &Self, state: Self::State, now: Timestamp) -> Self::State;

    /// Whether the state is as good as never seen at `now`, and stays so.
    fn is_fresh(&self, state: &Self::State, now: Timestamp) -> bool;

    /// The state in one word of at most [`WORD_MAX`], times counted from `origin`, if it fits. A algorithm whose
    /// states never do need not say more.
    fn pack(&self, _state: &Self::State, _origin: Timestamp) -> Option<u64> {
        None
    }

    /// The state that [`pack`](Self::pack) packed.
    fn unpack(&self, _word: u64, _origin: Timestamp) -> Self::State {
        Self::State::default()
    }

    /// One whole step on a packed state; `None` where that takes more than words can hold.
    #[inline]
    fn step_word(&self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost) -> Option<StepResult> {
        let mut state = self.unpack(word, origin);
        let outcome = self.evaluate(&state, now, cost);
        if !outcome.verdict.is_pass() || cost == Cost::ZERO {
            return Some(StepResult { outcome, next: word });
        }
        self.charge(&mut state, now, cost);
        Some(StepResult { outcome, next: self.pack(&state, origin)? })
    }

    /// The bytes that a state has allocated pending_cost itself.
    fn heap_bytes(_state: &Self::State) -> usize {
        0
    }

    /// Makes room in a state for one more charge without allocating; what it forgets, it forgets towards
    /// refusal.
    fn make_room(_state: &mut Self::State) {}
}

/// What a step on a packed state gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// The answer.
    pub outcome: Outcome,
    /// Where the cost fits, the packed state that follows.
    pub next: u64,
}

/// The largest word a packed state takes: two bits are left to whoever keeps it.
pub const WORD_MAX: u64 = (1 << 62) - 1;

/// A stable hash of a limit's parameters.
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiply and fold: every bit of the number reaches every bit of the hash.
        let product = u128::from(self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let [low, high] = [product, product >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)));
        self.0 = low.unwrap_or_default() ^ high.unwrap_or_default().rotate_left(23);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Something done with a limit whose algorithm is known: compiled once for each of them.
pub trait AlgorithmVisitor {
    /// What comes of it.
    type Output;

    /// Does it.
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

        /// All names, each on a line of its own.
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

        /// What is remembered of a key under a [`Limit`]; the default is a key never seen.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub enum CounterState {
            /// A key never seen.
            #[default]
            Unseen,
            $($(#[$doc])* $variant(<crate::$module::$variant as RateAlgorithm>::State),)+
        }

        impl CounterState {
            /// The bytes it has allocated pending_cost itself.
            pub fn heap_bytes(&self) -> usize {
                match self {
                    Self::Unseen => 0,
                    $(Self::$variant(state) => <crate::$module::$variant as RateAlgorithm>::heap_bytes(state),)+
                }
            }

            /// Makes room for one more charge without allocating; what it forgets, it forgets towards refusal.
            pub fn make_room(&mut self) {
                match self {
                    Self::Unseen => {}
                    $(Self::$variant(state) => <crate::$module::$variant as RateAlgorithm>::make_room(state),)+
                }
            }
        }

        impl Limit {
            /// The limit an operator specified, or why it cannot be.
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

            /// Has `visitor` visit the algorithm's own type.
            #[inline]
            pub fn visit<V: AlgorithmVisitor>(&self, visitor: V) -> V::Output {
                match &self.kind { $(AlgorithmKind::$variant(limit) => visitor.visit(limit),)+ }
            }

            /// The largest cost that could ever fit; what clients are shown as the limit.
            pub fn capacity(&self) -> u64 {
                match &self.kind { $(AlgorithmKind::$variant(limit) => limit.capacity(),)+ }
            }

            /// The step in which it sees time.
            pub fn tick(&self) -> Tick {
                match &self.kind { $(AlgorithmKind::$variant(limit) => limit.tick(),)+ }
            }

            /// Whether `cost` fits at `now`, changing nothing. Where it fits, `remaining` and `reset_after`
            /// are those after it was charged. A state of another algorithm counts as never seen.
            pub fn evaluate(&self, state: &CounterState, now: Timestamp, cost: Cost) -> Outcome {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.evaluate(state, now, cost),
                    (AlgorithmKind::$variant(limit), _) => limit.evaluate(&Default::default(), now, cost),)+
                }
            }

            /// Records `cost`, also one that does not fit (overage). A cost of 0 leaves no trace.
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

            /// Gives back what the state still holds of `cost`. `charged` is when the charged request was
            /// to pass: the time of its decision plus its own `wait`.
            pub fn refund(&self, state: &mut CounterState, charged: Timestamp, now: Timestamp, cost: Cost) {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.refund(state, charged, now, cost),)+
                    _ => {}
                }
            }

            /// The state under this limit of a key last counted under `old`: what is spent stays spent; a
            /// changed algorithm starts afresh.
            pub fn rebase(&self, old: &Self, state: CounterState, now: Timestamp) -> CounterState {
                match (&self.kind, &old.kind, state) {
                    $((AlgorithmKind::$variant(new), AlgorithmKind::$variant(old), CounterState::$variant(state)) => {
                        CounterState::$variant(new.rebase(old, state, now))
                    })+
                    _ => CounterState::Unseen,
                }
            }

            /// Whether the state is as good as never seen at `now`, and stays so.
            pub fn is_fresh(&self, state: &CounterState, now: Timestamp) -> bool {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.is_fresh(state, now),)+
                    _ => true,
                }
            }

            /// The state in one word of at most [`WORD_MAX`], times counted from `origin`, if it fits.
            pub fn pack(&self, state: &CounterState, origin: Timestamp) -> Option<u64> {
                match (&self.kind, state) {
                    $((AlgorithmKind::$variant(limit), CounterState::$variant(state)) => limit.pack(state, origin),)+
                    _ => None,
                }
            }

            /// The state that [`pack`](Self::pack) packed.
            pub fn unpack(&self, word: u64, origin: Timestamp) -> CounterState {
                match &self.kind {
                    $(AlgorithmKind::$variant(limit) => CounterState::$variant(limit.unpack(word, origin)),)+
                }
            }

            /// One whole step on a packed state; `None` where that takes more than words can hold.
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
    /// Every instant kept: exact.
    SlidingLog => sliding_log, "sliding_window_log";
    /// Two counts that stand for a sliding window.
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
    /// Its parameters.
    pub const fn kind(&self) -> &AlgorithmKind {
        &self.kind
    }

    /// A hash of its parameters: equal limits have equal fingerprints.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// One whole step: evaluates `cost`, and charges it if it fits.
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

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no algorithm `{name}`; there are{NAMES}")]
pub struct UnknownAlgorithm {
    /// What was asked for.
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
