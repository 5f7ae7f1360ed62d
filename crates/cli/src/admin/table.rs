//! Text output in columns.

/// Rows of cells; a column is as wide as its widest cell.
pub(super) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(super) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        self.rows.push(cells.map(str::to_owned).to_vec());
    }

    /// Formats the table. Returns `empty_text` if it has no rows.
    pub(super) fn render_or(self, empty_text: &str) -> String {
        if self.rows.len() == 1 {
            return format!("{empty_text}\n");
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_cells_are_aligned_in_columns() {
        let mut table = TextTable::new(["A", "B"]);
        table.row(["long", ""]);
        table.row(["x", "y"]);
        assert_eq!(table.render_or("none"), "A     B\nlong\nx     y\n");
        assert_eq!(TextTable::new(["A"]).render_or("none"), "none\n");
    }
}
