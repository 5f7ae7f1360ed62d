//! The cost of telemetry.

mod requests;
mod scrape;

/// Both targets: a large scrape, and the cost of metrics and logs per request.
pub(crate) fn run() -> anyhow::Result<()> {
    let scraped = scrape::run()?;
    let served = requests::run()?;
    println!("targets: {}/2 met", u8::from(scraped) + u8::from(served));
    anyhow::ensure!(scraped && served, "a target was missed");
    Ok(())
}
