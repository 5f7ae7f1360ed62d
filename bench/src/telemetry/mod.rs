//! What it costs that operators see something.

mod requests;
mod scrape;

/// Both bars: a scrape of very much, and what counting and logging add to a request.
pub(crate) fn run() -> anyhow::Result<()> {
    let scraped = scrape::run()?;
    let served = requests::run()?;
    println!("bars: {}/2 met", u8::from(scraped) + u8::from(served));
    anyhow::ensure!(scraped && served, "a bar is not met");
    Ok(())
}
