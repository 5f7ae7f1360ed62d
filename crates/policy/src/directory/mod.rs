//! The tier and tenant of each API key, from a file with one line for each key.
//!
//! ```csv
//! key,tier,tenant
//! # partners
//! sk_live_51H,premium,acme
//! sk_live_9x2,free
//! ```
//!
//! The header line and the tenant (with its comma) are optional. In place of a key, a line may have `sha256:` and its hash. Lines that begin with `#` and empty lines are skipped.
//! Fields may be quoted. Lines end with LF or CRLF.
//!
//! Keys are secrets and there may be millions of them, so the directory does not store them: it stores a 128-bit
//! `SipHash` of each key under a random seed of this process. A key that is not in a file of n keys is accepted with a probability of
//! n · 2^-128. A directory is immutable; after a change of the file the caller builds a new one.

pub(crate) mod file;
pub(crate) mod form;
mod problem;
mod table;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use hashbrown::{HashMap, HashTable};
use siphasher::sip128::SipHasher13;

use form::KeyForm;
use problem::ProblemCollector;
pub use problem::{DirectoryError, LineError, LineProblem};
use table::{DuplicateKey, KeyHash, KeyTable};

/// Tiers and tenants by API key.
pub struct Directory {
    /// Indexes into `grants`.
    keys: KeyTable,
    form: KeyForm,
    seed: Seed,
    /// Indexes into `tiers` and `tenants`.
    grants: Vec<(u32, u32)>,
    tiers: Vec<Box<str>>,
    tenants: TenantNames,
}

/// The tier and tenant of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant<'a> {
    /// The name of the tier.
    pub tier: &'a str,
    /// The index of the tier among those passed to the directory.
    pub tier_index: usize,
    /// The tenant, if the file names one.
    pub tenant: Option<&'a str>,
}

const NO_TENANT: u32 = u32::MAX;

impl Directory {
    /// Parses a CSV file. Its tiers must be among `tiers`.
    ///
    /// ```
    /// use tidegate_policy::Directory;
    ///
    /// let directory = Directory::from_csv(b"key,tier,tenant\nsk_1,premium,acme\nsk_2,free\n", &["free", "premium"])?;
    /// let grant = directory.get(b"sk_1").expect("it is in the file");
    /// assert_eq!((grant.tier, grant.tenant), ("premium", Some("acme")));
    /// assert_eq!(directory.get(b"sk_3"), None);
    /// # Ok::<(), tidegate_policy::DirectoryError>(())
    /// ```
    pub fn from_csv(text: &[u8], tiers: &[impl AsRef<str>]) -> Result<Self, DirectoryError> {
        let mut builder = DirectoryBuilder::new(tiers, KeyForm::of_text(text));
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .comment(Some(b'#'))
            .trim(csv::Trim::All)
            .from_reader(text);
        let mut record = csv::ByteRecord::new();
        let mut is_first = true;
        // Reading from memory cannot fail, and a flexible reader accepts any number of fields.
        while let Ok(true) = reader.read_byte_record(&mut record) {
            if std::mem::take(&mut is_first)
                && matches!(record.get(0), Some(b"key" | b"api_key"))
                && record.get(1) == Some(b"tier")
            {
                continue;
            }
            let line = record.position().map_or(0, csv::Position::line);
            if let Err(cause) = builder.add(&record, line) {
                builder.problems.add_problem(line, cause);
            }
        }
        builder.finish()
    }

    /// Returns the tier and tenant of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Grant<'_>> {
        let grant = self.keys.find(&self.seed.hash(self.form.sent(key).as_bytes()))?;
        let &(tier, tenant) = self.grants.get(grant as usize)?;
        let tier_index = tier as usize;
        Some(Grant { tier: self.tiers.get(tier_index)?, tier_index, tenant: self.tenants.get(tenant) })
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys are not in `other`. Tiers and tenants do not matter. If only one of the two is hashed, keys cannot be compared,
    /// and their numbers are.
    pub(crate) fn count_missing_in(&self, other: &Self) -> usize {
        if self.form != other.form {
            return self.len().saturating_sub(other.len());
        }
        self.keys.iter().filter(|key| other.keys.find(key).is_none()).count()
    }

    /// The size in bytes, without the allocator's rounding.
    pub fn size(&self) -> usize {
        self.keys.size() + self.grants.capacity() * size_of::<(u32, u32)>() + self.tenants.size()
    }
}

impl fmt::Debug for Directory {
    /// Writes only the numbers of keys and tenants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({} keys, {} tenants)", self.len(), self.tenants.ends.len())
    }
}

/// The random secret that keys are hashed with: one for the process, so that directories can be compared.
#[derive(Clone)]
struct Seed(SipHasher13);

static SEED: LazyLock<Seed> = LazyLock::new(|| {
    let random = RandomState::new();
    Seed(SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)))
});

impl Seed {
    fn of_process() -> Self {
        SEED.clone()
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        self.0.hash(key).as_bytes()
    }
}

/// Builds a directory. The table is created at the end, when the number of keys is known.
struct DirectoryBuilder {
    directory: Directory,
    lines: Vec<KeyLine>,
    /// Indexes into `tenants` by name.
    known_tenants: HashTable<u32>,
    known_grants: HashMap<(u32, u32), u32, foldhash::fast::RandomState>,
    problems: ProblemCollector,
}

struct KeyLine {
    key: KeyHash,
    grant: u32,
    number: u64,
}

impl DirectoryBuilder {
    fn new(tiers: &[impl AsRef<str>], form: KeyForm) -> Self {
        let directory = Directory {
            keys: KeyTable::for_entries(0),
            form,
            seed: Seed::of_process(),
            grants: Vec::new(),
            tiers: tiers.iter().map(|tier| tier.as_ref().into()).collect(),
            tenants: TenantNames::default(),
        };
        Self {
            directory,
            lines: Vec::new(),
            known_tenants: HashTable::new(),
            known_grants: HashMap::default(),
            problems: ProblemCollector::default(),
        }
    }

    fn add(&mut self, record: &csv::ByteRecord, number: u64) -> Result<(), LineError> {
        if record.as_slice().iter().any(u8::is_ascii_control) {
            return Err(LineError::Control);
        }
        let (2..=3, Some(key), Some(tier)) = (record.len(), record.get(0), record.get(1)) else {
            return Err(LineError::Fields { found: record.len() });
        };
        if key.is_empty() {
            return Err(LineError::NoKey);
        }
        if !key.is_ascii() {
            return Err(LineError::NotAscii);
        }
        let formed = self.directory.form.listed(key).map_err(|_| LineError::Hash)?;
        let tier = self.tier(tier).ok_or_else(|| self.unknown(tier, key))?;
        let tenant = match record.get(2) {
            None | Some(b"") => NO_TENANT,
            Some(tenant) => self.tenant(tenant)?,
        };
        let next = u32::try_from(self.directory.grants.len()).map_err(|_| LineError::TooManyTenants)?;
        let grant = *self.known_grants.entry((tier, tenant)).or_insert(next);
        if grant == next {
            self.directory.grants.push((tier, tenant));
        }
        self.lines.push(KeyLine { key: self.directory.seed.hash(formed.as_bytes()), grant, number });
        Ok(())
    }

    fn tier(&self, name: &[u8]) -> Option<u32> {
        let index = self.directory.tiers.iter().position(|tier| tier.as_bytes() == name)?;
        u32::try_from(index).ok()
    }

    /// Returns the error for an unknown tier. If the fields are swapped, the second may be a key and is not shown.
    fn unknown(&self, tier: &[u8], key: &[u8]) -> LineError {
        if self.tier(key).is_some() {
            return LineError::Swapped { tier: String::from_utf8_lossy(key).into_owned() };
        }
        let Ok(tier) = str::from_utf8(tier) else { return LineError::NotUtf8 };
        let mut tiers = self.directory.tiers.iter();
        let nearest = tiers.find(|known| known.eq_ignore_ascii_case(tier)).map(ToString::to_string);
        LineError::UnknownTier { tier: tier.to_owned(), nearest }
    }

    fn tenant(&mut self, name: &[u8]) -> Result<u32, LineError> {
        let name = str::from_utf8(name).map_err(|_| LineError::NotUtf8)?;
        let tenants = &mut self.directory.tenants;
        let hasher = self.known_grants.hasher();
        let hash = |name: &str| hasher.hash_one(name);
        if let Some(&index) = self.known_tenants.find(hash(name), |&index| tenants.get(index) == Some(name)) {
            return Ok(index);
        }
        let index = tenants.push(name).ok_or(LineError::TooManyTenants)?;
        let of_known = |&index: &u32| hash(tenants.get(index).unwrap_or_default());
        self.known_tenants.insert_unique(hash(name), index, of_known);
        Ok(index)
    }

    fn finish(mut self) -> Result<Directory, DirectoryError> {
        let mut keys = KeyTable::for_entries(self.lines.len());
        for KeyLine { key, grant, number } in self.lines {
            if let Err(DuplicateKey) = keys.insert(key, grant) {
                self.problems.add_problem(number, LineError::Duplicate);
            }
        }
        self.problems.into_result()?;
        self.directory.keys = keys;
        self.directory.grants.shrink_to_fit();
        self.directory.tenants.shrink();
        Ok(self.directory)
    }
}

/// Many names in one string; each costs four bytes in addition to its text.
#[derive(Default)]
struct TenantNames {
    text: String,
    ends: Vec<u32>,
}

impl TenantNames {
    fn get(&self, index: u32) -> Option<&str> {
        let index = index as usize;
        let end = *self.ends.get(index)? as usize;
        let start =
            index.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&end| end as usize);
        self.text.get(start..end)
    }

    fn push(&mut self, name: &str) -> Option<u32> {
        let index = u32::try_from(self.ends.len()).ok().filter(|&index| index != NO_TENANT)?;
        let end = u32::try_from(self.text.len() + name.len()).ok()?;
        self.text.push_str(name);
        self.ends.push(end);
        Some(index)
    }

    fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    fn size(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [&str; 2] = ["free", "premium"];

    fn load(text: &str) -> Directory {
        Directory::from_csv(text.as_bytes(), &TIERS).unwrap()
    }

    fn problems(text: &str) -> String {
        Directory::from_csv(text.as_bytes(), &TIERS).unwrap_err().to_string()
    }

    #[test]
    fn csv_with_header_comments_blank_lines_quotes_and_crlf_is_parsed() {
        let directory = load(
            "\u{feff}key,tier,tenant\r\n# partners\r\n\r\nk1, premium ,acme\r\n\"k,2\",free\r\nk3,free,\r\n",
        );
        assert_eq!(directory.len(), 3);
        assert_eq!(
            directory.get(b"k1"),
            Some(Grant { tier: "premium", tier_index: 1, tenant: Some("acme") })
        );
        assert_eq!(directory.get(b"k,2"), Some(Grant { tier: "free", tier_index: 0, tenant: None }));
        assert_eq!(directory.get(b"k3").unwrap().tenant, None);
        assert_eq!(directory.get(b""), None);
        assert_eq!(directory.get(b"key"), None);
        assert!(load("").is_empty());
        assert_eq!(load("key,free\n").len(), 1, "without a header line, `key` is a key");
    }

    #[test]
    fn csv_repeated_tenant_is_stored_once() {
        let directory = load("a,free,acme\nb,free,umbrella\nc,free,acme\n");
        assert_eq!(directory.tenants.text, "acmeumbrella");
        assert_eq!(directory.get(b"c").unwrap().tenant, Some("acme"));
        assert_eq!(directory.get(b"b").unwrap().tenant, Some("umbrella"));
    }

    #[test]
    fn csv_invalid_lines_are_all_reported_with_line_number() {
        assert_eq!(
            problems("a,free\nb\nc,gold\nd,Premium\n,free\na,free\ne,free,x,y\n"),
            "line 2: found 1 field; write `key,tier` or `key,tier,tenant`\n\
             line 3: unknown tier `gold`; add it to `rate_limits.tiers`\n\
             line 4: unknown tier `Premium`; did you mean `premium`?\n\
             line 5: the key is empty; write `key,tier` or `key,tier,tenant`\n\
             line 6: duplicate key; remove one of the lines\n\
             line 7: found 4 fields; write `key,tier` or `key,tier,tenant`"
        );
        assert!(problems("a,free\n\"b,free\nc,free\n").starts_with("line 2: a field contains a control"));
        assert!(problems("free,sk_1\n").contains("the first field is the tier `free`; write the key first"));
        let many = problems(&"x\n".repeat(25));
        assert_eq!(many.lines().count(), 21);
        assert!(many.ends_with("and 5 more"));
    }

    #[test]
    fn messages_never_contain_a_key() {
        let shown =
            format!("{:?} {}", load("sk_secret,free"), problems("sk_secret,gold\nsk_secret\nfree,sk_secret"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
