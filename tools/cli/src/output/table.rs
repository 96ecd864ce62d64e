//! Tables whose columns line up, in any script.

use std::io::{self, Write};

use super::human::width;

/// How a column lines up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table held until its widths are known.
pub(crate) struct Table<const N: usize> {
    columns: [(&'static str, Align); N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with these headings; an empty heading is fine.
    pub(crate) fn new(columns: [(&'static str, Align); N]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// Writes the headings, unless all are empty, and the rows. Nothing trails a line.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let widths: [usize; N] = std::array::from_fn(|i| {
            let cells = self.rows.iter().map(|row| width(plain(&row[i]).as_str()));
            cells.chain([width(self.columns[i].0)]).max().unwrap_or(0)
        });
        if self.columns.iter().any(|(heading, _)| !heading.is_empty()) {
            let headings: [String; N] = std::array::from_fn(|i| self.columns[i].0.to_owned());
            self.print_row(&headings, &widths, out)?;
        }
        self.rows.iter().try_for_each(|row| self.print_row(row, &widths, out))
    }

    fn print_row(&self, row: &[String; N], widths: &[usize; N], out: &mut impl Write) -> io::Result<()> {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let pad = widths[i] - width(plain(cell).as_str());
            let (before, after) = if self.columns[i].1 == Align::Right { (pad, 0) } else { (0, pad) };
            if i > 0 {
                line.push_str("  ");
            }
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', after));
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// A cell without its colour: what [`Style`](super::Style) adds takes no column.
fn plain(cell: &str) -> String {
    let mut out = String::with_capacity(cell.len());
    let mut rest = cell;
    while let Some((text, mark)) = rest.split_once('\x1b') {
        out.push_str(text);
        rest = mark.split_once('m').map_or("", |(_, after)| after);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(table: &Table<2>) -> String {
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_in_any_script_and_colour() {
        let mut table = Table::new([("name", Align::Left), ("n", Align::Right)]);
        table.row(["地図".into(), "1".into()]);
        table.row(["\x1b[31mab\x1b[0m".into(), "200".into()]);
        assert_eq!(shown(&table), "name    n\n地図    1\n\x1b[31mab\x1b[0m    200\n");
    }

    #[test]
    fn no_headings_no_heading_line() {
        let mut table = Table::new([("", Align::Left), ("", Align::Left)]);
        table.row(["a".into(), String::new()]);
        assert_eq!(shown(&table), "a\n");
    }
}
