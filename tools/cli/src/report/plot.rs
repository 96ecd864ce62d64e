//! Horizontal bars as SVG. Lengths are integers in tenths of a unit, so no input makes a length that is no number.

use super::escaped;

/// What a bar stands for; decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Series {
    Logical,
    Stored,
}

/// One bar.
pub(super) struct Mark {
    pub(super) series: Series,
    pub(super) value: u64,
    /// What stands behind it.
    pub(super) shown: String,
}

/// Bars with one label.
pub(super) struct Row {
    pub(super) label: String,
    /// What is shown when somebody points at it.
    pub(super) hint: String,
    pub(super) marks: Vec<Mark>,
}

const WIDTH: usize = 760;
const LABEL_WIDTH: usize = 220;
/// Room behind the longest bar.
const SHOWN_WIDTH: usize = 150;
const BAR_HEIGHT: usize = 14;
const BAR_STEP: usize = 18;
const ROW_GAP: usize = 10;

impl Series {
    const fn class(self) -> &'static str {
        match self {
            Self::Logical => "logical",
            Self::Stored => "stored",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Logical => "as JSON lines",
            Self::Stored => "stored",
        }
    }
}

/// A plot of rows that share one scale.
pub(super) fn bars(title: &str, rows: &[Row]) -> String {
    if rows.is_empty() {
        return "<p class=\"none\">Nothing yet.</p>\n".to_owned();
    }
    let most = rows.iter().flat_map(|row| &row.marks).map(|mark| mark.value).max().unwrap_or(0);
    let (mut body, mut y) = (String::new(), 2);
    for row in rows {
        let height = row.marks.len() * BAR_STEP;
        let middle = y + (height + BAR_HEIGHT - BAR_STEP) / 2;
        body += &format!("<g><title>{}</title>", escaped(&row.hint));
        body += &format!(
            "<text class=\"label\" x=\"{}\" y=\"{middle}\">{}</text>",
            LABEL_WIDTH - 10,
            escaped(&row.label)
        );
        for mark in &row.marks {
            body += &bar(mark, most, y);
            y += BAR_STEP;
        }
        body += "</g>\n";
        y += ROW_GAP;
    }
    let height = y - ROW_GAP;
    let title = escaped(title);
    format!(
        "{}<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n{body}</svg>\n",
        legend(rows)
    )
}

fn bar(mark: &Mark, most: u64, y: usize) -> String {
    let room = WIDTH - LABEL_WIDTH - SHOWN_WIDTH;
    let tenths = u128::from(mark.value) * room as u128 * 10 / u128::from(most.max(1));
    // Whatever is there can be seen.
    let tenths = if mark.value == 0 { 0 } else { tenths.max(15) };
    let (class, shown) = (mark.series.class(), escaped(&mark.shown));
    format!(
        "<rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{}.{}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>\
         <text class=\"value\" x=\"{}\" y=\"{}\">{shown}</text>",
        tenths / 10,
        tenths % 10,
        LABEL_WIDTH as u128 + tenths / 10 + 8,
        y + BAR_HEIGHT / 2,
    )
}

/// Names the colours where there is more than one.
fn legend(rows: &[Row]) -> String {
    if rows.iter().all(|row| row.marks.len() < 2) {
        return String::new();
    }
    let entry = |series: Series| format!("<span class=\"{}\">{}</span>", series.class(), series.name());
    format!("<p class=\"legend\">{}{}</p>\n", entry(Series::Logical), entry(Series::Stored))
}
