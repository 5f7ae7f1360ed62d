//! The cost of matching a request: part by part, then as a whole.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use http::HeaderMap;
use tidegate_core::Timestamp;
use tidegate_policy::{
    ClientKind, Directory, EndpointPattern, Endpoints, Expression, Facts, Identities, IdentitySpec, normalize,
};

use crate::{admit, median, nanos_each};

const CALLS: usize = 1_000_000;
const KEYS: usize = 1_000_000;
/// Requested in turn, so that no single path stays in the cache.
const PATHS: usize = 4096;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("{:44} {:>10}", "", "ns");
    paths();
    let few = endpoints(10)?;
    let many = endpoints(10_000)?;
    println!("{:44} {:>10.2}", "  10,000 patterns to 10, a ratio", many / few);
    identity()?;
    expressions()?;
    directory()?;
    admit::run(&sample()?)
}

fn paths() {
    let clean = "/api/v1/customers/4711/orders";
    report("normalize a clean path of 29 bytes", || time(|_| normalize(black_box(clean)).is_ok()));
    let spelled = "/api//v1/./%63ustomers/4711/x/../orders";
    report("normalize a path that changes", || time(|_| normalize(black_box(spelled)).is_ok()));
}

/// Half the patterns are literal, the others have a parameter; every tenth path matches none of them.
fn endpoints(count: usize) -> anyhow::Result<f64> {
    let mut endpoints = Endpoints::default();
    for n in 0..count {
        let pattern = match n % 2 {
            0 => format!("/api/v1/resource-{n}/items"),
            _ => format!("GET /api/v1/resource-{n}/{{id}}"),
        };
        endpoints.insert(&EndpointPattern::parse(&pattern)?, n)?;
    }
    let mut random = fastrand::Rng::with_seed(7);
    let paths: Vec<_> = (0..PATHS)
        .map(|n| {
            let resource = if n % 10 == 0 { count + n } else { random.usize(..count) };
            format!("/api/v1/resource-{resource}/items")
        })
        .collect();
    let name = format!("find the endpoint among {count} patterns");
    Ok(report(&name, || time(|n| endpoints.find("GET", &paths[n % PATHS]).is_some())))
}

fn sample() -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "api.example.org"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, deflate, br"),
        ("x-api-key", "sk_live_000000000000000042"),
        ("x-forwarded-for", "198.51.100.7, 10.1.2.3"),
    ] {
        headers.insert(name, value.parse()?);
    }
    Ok(headers)
}

fn facts(headers: &HeaderMap) -> Facts<'_> {
    Facts {
        method: "POST",
        host: Some("api.example.org"),
        path: "/api/v1/orders",
        headers,
        peer: [10, 0, 0, 1].into(),
        body: tidegate_policy::BodyFacts::Unknown,
    }
}

fn identity() -> anyhow::Result<()> {
    let spec = IdentitySpec::default();
    let addresses = spec.addresses.clone().with_trusted_proxies(["10.0.0.0/8".parse()?]);
    let identities = Identities::new(IdentitySpec { addresses, accepts_unverified_keys: true, ..spec })?;
    let headers = sample()?;
    let facts = facts(&headers);
    let mut key = Vec::new();
    for kind in [ClientKind::ApiKey, ClientKind::Ip] {
        let name = format!("identify a client by {}", kind.name());
        report(&name, || {
            time(|_| {
                key.clear();
                identities.identify(black_box(&facts), None, Timestamp::default()).append(kind, &mut key)
            })
        });
    }
    Ok(())
}

fn expressions() -> anyhow::Result<()> {
    let identities = Identities::new(IdentitySpec::default())?;
    let headers = sample()?;
    let facts = facts(&headers);
    for source in [
        "request.method == 'POST'",
        "request.method == 'POST' && client.tier != 'premium'",
        "request.path.startsWith('/api/') && request.headers['x-internal'] == ''",
        "request.headers['user-agent'].matches('curl|wget|python')",
    ] {
        let expression = Expression::compile(source)?;
        let identity = identities.identify(&facts, None, Timestamp::default());
        report(source, || time(|_| expression.evaluate(black_box(&identity), Some("free")) == Ok(true)));
    }
    Ok(())
}

fn directory() -> anyhow::Result<()> {
    let mut csv = String::from("key,tier,tenant\n");
    for n in 0..KEYS {
        let tier = ["free", "premium", "enterprise"][n % 3];
        writeln!(csv, "sk_live_{n:018},{tier},tenant-{}", n % 10_000)?;
    }
    let start = Instant::now();
    let directory = Directory::from_csv(csv.as_bytes(), &["free", "premium", "enterprise"])?;
    let elapsed = start.elapsed();
    println!("{:44} {:>10}", "load a directory of 1,000,000 keys, in ms", elapsed.as_millis());
    println!("{:44} {:>10}", "  bytes per key", directory.size() / KEYS);
    // In one allocation, so that only the directory is out of the cache.
    let mut random = fastrand::Rng::with_seed(7);
    let mut keys = String::new();
    for _ in 0..1 << 16 {
        write!(keys, "sk_live_{:018}", random.usize(..KEYS))?;
    }
    let (keys, _) = keys.as_bytes().as_chunks::<26>();
    report("  look up the same key", || time(|_| directory.get(black_box(&keys[0])).is_some()));
    report("  look up a random key", || time(|n| directory.get(&keys[n % keys.len()]).is_some()));
    Ok(())
}

fn report(name: &str, measure: impl FnMut() -> f64) -> f64 {
    let nanos = median(measure);
    println!("{name:44} {nanos:>10.1}");
    nanos
}

fn time(mut call: impl FnMut(usize) -> bool) -> f64 {
    let start = Instant::now();
    for index in 0..CALLS {
        black_box(call(black_box(index)));
    }
    nanos_each(start.elapsed(), CALLS as u64)
}
