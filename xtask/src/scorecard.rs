//! `cargo xtask scorecard`: tests that take minutes, each with a pass criterion.

use std::fs;

use anyhow::{Context, bail};

use crate::run::{self, cargo};
use crate::{setup, test};

/// A long test and its pass criterion (`bar`).
struct LongTest {
    name: &'static str,
    what: &'static str,
    bar: &'static str,
    run: fn() -> anyhow::Result<()>,
}

const LONG_TESTS: [LongTest; 17] = [
    LongTest {
        name: "accuracy",
        what: "three node processes share limits through Redis in every mode, clocks skewed by 5 s; replayed on an ideal limiter",
        bar: "excess 0 for central and lease, within the bound for sync; utilisation at least 99 % for central and lease",
        run: || {
            setup::ensure("redis-server")?;
            run::run(&mut cargo("run --release --package bench -- accuracy"))
        },
    },
    LongTest {
        name: "cascade",
        what: "three tiers of which the bottom one hangs for 10 s, with and without the tower layers, on virtual time",
        bar: "with them 99 % of the requests that do not need the bottom succeed, all again within 5 s; without them neither",
        run: || run::run(&mut cargo("run --release --package bench -- cascade")),
    },
    LongTest {
        name: "cluster",
        what: "two gateways and a cluster of six nodes at steady load: a killed primary, a failover, moved slots, SCRIPT FLUSH",
        bar: "no failed request; at most 1.5 times the limit in a window in which a fallback begins, the limit in all others",
        run: || with_redis("long_cluster"),
    },
    LongTest {
        name: "crash",
        what: "the real binary, killed 200 times while bans are added and removed through the admin API",
        bar: "0 acknowledged changes lost",
        run: || binary("long_acknowledged_bans"),
    },
    LongTest {
        name: "equivalence",
        what: "core, the stores, the Lua scripts and a 128-bit model over random traces with extremes",
        bar: "0 mismatches in any field",
        run: equivalence,
    },
    LongTest {
        name: "flood",
        what: "10 million random keys against a store for a million, an abuser and a thousand regulars",
        bar: "memory within the cap + 5 %, the abuser stays rejected, no regular client is, no pause over 1 ms",
        run: || run::run(&mut cargo("run --release --package bench -- flood")),
    },
    LongTest {
        name: "lease",
        what: "the lease protocol under faults on virtual time; one of two gateways with leased units is stopped past the \
               end of its leases and continued, or killed",
        bar: "no excess; at least 90 % of the limit available to the other gateway once the leases have expired",
        run: lease,
    },
    LongTest {
        name: "fuzz",
        what: "random bytes for 10 minutes per fuzz target",
        bar: "no crash, no hang",
        run: || fuzz(&FUZZ_TARGETS),
    },
    LongTest { name: "loom", what: "all interleavings of concurrent code", bar: "clean", run: test::loom },
    LongTest {
        name: "outage",
        what: "two gateways at steady load while Redis is killed, stopped, busy, reset, blackholed, slow, absent at start",
        bar: "no 5xx, responses within 100 ms, Redis used within 1 s of its return; at most 1.5 times the limit in a \
              window in which a fallback begins, the limit in all others",
        run: || with_redis("long_outage"),
    },
    LongTest {
        name: "probes",
        what: "several hundred valid and invalid requests, byte by byte, to the gateway and to nginx",
        bar: "no difference that docs/gateway.md does not list",
        run: || with_nginx("long_probes"),
    },
    LongTest {
        name: "readings",
        what: "10,000 generated requests, ordinary and odd, to gateway, decision service (three ways), tower layer and `explain`",
        bar: "the same reason to reject a request, or the same rules, counters and costs, in all of them",
        run: || {
            let line = "test --release --package tidegate-service --test service -- --ignored --nocapture";
            run::run(cargo(line).arg("long_generated_requests"))
        },
    },
    LongTest {
        name: "reload",
        what: "500 reloads, good and bad, while clients send requests without a pause",
        bar: "no failed request, no counter reset",
        run: || binary("long_reloads"),
    },
    LongTest {
        name: "sync",
        what: "three nodes with `coordination: sync` and an interval of 1 s, 20 runs with random limits, rates and phases",
        bar: "the last unit beyond the limit at most 1.1 s after the limit was reached, in every run",
        run: || {
            setup::ensure("redis-server")?;
            let line =
                "test --release --package tidegate-redis --test redis -- --ignored --nocapture long_sync";
            run::run(&mut cargo(line))
        },
    },
    LongTest {
        name: "upstreams",
        what: "100 restarts of nginx upstreams, half of them by a kill, while clients send requests without a pause",
        bar: "no failed idempotent request",
        run: || with_nginx("long_nginx"),
    },
    LongTest {
        name: "storm",
        what: "1,000 clients that retry against a service that dies for 10 s, on virtual time",
        bar: "with budget a quarter of the peak load at most and recovery within 5 s; without it none",
        run: || run::run(&mut cargo("run --release --package bench -- storm")),
    },
    LongTest {
        name: "waiting",
        what: "10,000 requests wait for one counter in two threads and depart at 100/s and at 1,000/s; 100,000 wait",
        bar: "none early, no drift, p99 at most 1.5 times as late as a bare timer in the same run; 2 KiB for each that waits",
        run: || {
            let line = "test --release --package tidegate-limiter --test limiter -- --ignored --nocapture --test-threads 1";
            run::run(cargo(line).arg("departures"))
        },
    },
];

pub(crate) fn run(name: Option<&str>) -> anyhow::Result<()> {
    let Some(name) = name else {
        for LongTest { name, what, bar, .. } in &LONG_TESTS {
            println!("{name:12} {what}\n{:12} bar: {bar}", "");
        }
        return Ok(());
    };
    let Some(entry) = LONG_TESTS.iter().find(|entry| entry.name == name) else {
        let names: Vec<_> = LONG_TESTS.iter().map(|entry| entry.name).collect();
        bail!("unknown test `{name}`; available: {}", names.join(", "));
    };
    (entry.run)()?;
    println!("{name}: passed: {}", entry.bar);
    Ok(())
}

/// The fuzz targets that run for 10 minutes each.
const FUZZ_TARGETS: [&str; 2] = ["resp", "rls"];

/// Runs fuzz targets for 10 minutes each. The compiler's options for fuzzing are unstable; `RUSTC_BOOTSTRAP` allows them in the
/// version that the repository uses, so no other one is needed.
fn fuzz(targets: &[&str]) -> anyhow::Result<()> {
    if run::output(&mut cargo("fuzz --version")).is_err() {
        run::run(&mut cargo("install cargo-fuzz --locked"))?;
    }
    for target in targets {
        // New inputs go to the first folder, which is not part of the repository.
        let folders = [format!("fuzz/target/corpus/{target}"), format!("fuzz/corpus/{target}")];
        for folder in &folders {
            let path = run::root().join(folder);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let mut command = cargo("fuzz run");
        command.arg(target).args(folders).env("RUSTC_BOOTSTRAP", "1").arg("--");
        command.args(["-max_total_time=600", "-timeout=10", "-max_len=65536", "-print_final_stats=1"]);
        run::run(&mut command)?;
    }
    Ok(())
}

/// A long test of the real binary.
fn binary(name: &str) -> anyhow::Result<()> {
    let line = "test --release --package tidegate --test tidegate -- --ignored --nocapture";
    run::run(cargo(line).arg(name))
}

/// A long test of the real binary that starts Redis.
fn with_redis(name: &str) -> anyhow::Result<()> {
    setup::ensure("redis-server")?;
    binary(name)
}

/// A long test of the gateway that starts nginx.
fn with_nginx(name: &str) -> anyhow::Result<()> {
    setup::ensure("nginx")?;
    let line =
        "test --workspace --exclude bench --exclude bench-peers --test gateway -- --ignored --nocapture";
    run::run(cargo(line).arg(name))
}

fn lease() -> anyhow::Result<()> {
    let simulation =
        "test --release --package tidegate-redis --lib -- --ignored --nocapture long_lease_simulation";
    run::run(&mut cargo(simulation))?;
    with_redis("long_lease")
}

fn equivalence() -> anyhow::Result<()> {
    let mut laws = cargo("test --release --package tidegate-core --test laws");
    // Some laws reject a share of the generated cases.
    run::run(laws.env("PROPTEST_CASES", "100000").env("PROPTEST_MAX_GLOBAL_REJECTS", "10000000"))?;
    for package in ["tidegate-store", "tidegate-redis"] {
        let line = format!("test --release --package {package} -- --ignored --nocapture long_equivalence");
        run::run(&mut cargo(&line))?;
    }
    Ok(())
}
