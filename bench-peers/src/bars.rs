//! Bars to be met, and the closing line.

/// How many were met, of how many.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    met: usize,
    all: usize,
}

impl Bars {
    pub(crate) fn at_least(&mut self, what: &str, figure: f64, bar: f64) {
        self.count(figure >= bar, &format!("{figure:.2} {what}, bar ≥ {bar}"));
    }

    pub(crate) fn at_most(&mut self, what: &str, figure: f64, bar: f64) {
        self.count(figure <= bar, &format!("{figure:.2} {what}, bar ≤ {bar:.2}"));
    }

    /// A bar that nothing was measured for is missed.
    pub(crate) fn without_figure(&mut self, what: &str) {
        self.count(false, &format!("no figure: {what}"));
    }

    fn count(&mut self, met: bool, text: &str) {
        println!("  {} {text}", if met { "met   " } else { "MISSED" });
        self.met += usize::from(met);
        self.all += 1;
    }

    /// Prints the closing line; whether all were met.
    pub(crate) fn close(&self) -> bool {
        println!("\nbars: {}/{} met", self.met, self.all);
        self.met == self.all
    }
}

pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
