//! A bulkhead isolates slow queries of a connection pool: reports may use two of the five connections, so that lookups always
//! find one.
//!
//! `cargo run -p tidegate-tower --example database_pool`

use std::sync::Arc;
use std::time::Duration;

use tidegate_tower::BoxError;
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadFull};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A connection pool; callers wait for a connection, as with most database drivers.
struct Pool(Semaphore);

impl Pool {
    async fn query(&self, takes: Duration) -> Result<&'static str, BoxError> {
        let _connection = self.0.acquire().await?;
        tokio::time::sleep(takes).await;
        Ok("rows")
    }
}

/// Reports are slow. With a bulkhead they use only some of the connections.
async fn report(pool: Arc<Pool>, bulkhead: Option<Bulkhead>) -> Result<(), BoxError> {
    let _permit = match bulkhead {
        // The handle is used directly: the permit is returned when it is dropped.
        Some(bulkhead) => Some(bulkhead.acquire().await?),
        None => None,
    };
    pool.query(Duration::from_secs(2)).await?;
    Ok(())
}

/// Sends ten reports, then counts the lookups that find a connection in time.
async fn run(bulkhead: Option<Bulkhead>) -> Result<(), BoxError> {
    let pool = Arc::new(Pool(Semaphore::new(5)));
    let mut reports = JoinSet::new();
    for _ in 0..10 {
        reports.spawn(report(Arc::clone(&pool), bulkhead.clone()));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut served = 0;
    for _ in 0..10 {
        let lookup = timeout(Duration::from_millis(100), pool.query(Duration::from_millis(1)));
        served += usize::from(lookup.await.is_ok());
    }
    let mut rejected = 0;
    while let Some(report) = reports.try_join_next() {
        rejected += usize::from(report?.is_err_and(|error| error.is::<BulkheadFull>()));
    }
    println!("  lookups in time: {served} of 10; reports rejected at once: {rejected} of 10");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!("without a bulkhead, reports take all connections:");
    run(None).await?;
    println!("with a bulkhead of two reports and four that wait:");
    run(Some(Bulkhead::new(BulkheadConfig::new(2).queue(4, Duration::from_secs(3))))).await
}
