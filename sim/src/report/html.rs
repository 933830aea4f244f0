//! What all pages have in common: one HTML file without scripts that needs nothing else, light or dark as the reader prefers,
//! and fit to be printed.

use super::svg::escaped;

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #ffffff; --text: #24292f; --soft: #57606a; --line: #d8dee4; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --text: #e6edf3; --soft: #9da7b3; --line: #30363d; } }
body { background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, 'DejaVu Sans', sans-serif; max-width: 50rem; \
margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-bottom: .2rem; }
.verdict { font-size: 1.15rem; } .soft { color: var(--soft); } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } code { overflow-wrap: anywhere; }
.t { fill: var(--text); font-size: 12px; }
.key { display: inline-block; width: 1em; height: .8em; margin: 0 .3em 0 .9em; vertical-align: middle; }
@media print { body { max-width: none; margin: 0; font-size: 11pt; } .wide { overflow: visible; } svg, tr { break-inside: avoid; } \
h2, h3 { break-after: avoid; } }
";

/// Browsers run and fetch nothing, whatever the page holds.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The end of a page.
pub const END: &str = "</body></html>\n";

/// The beginning of a page with a title, which is its heading as well, and more rules of style.
pub fn begin(title: &str, style: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"{POLICY}\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}{style}</style></head><body>\n<h1>{title}</h1>\n"
    )
}

/// A table: a head, then rows of as many cells, all of them text. The first column is aligned to the left.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.iter().map(|cells| row("td", &mut cells.iter().map(String::as_str))).collect();
    format!("<div class=\"wide\"><table>{}{rows}</table></div>\n", row("th", &mut head.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_title_or_a_cell_says_is_text() {
        let page = begin("<script>", "") + &table(&["a & b"], &[vec!["<img src=x>".to_owned()]]) + END;
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(page.contains("<th>a &amp; b</th>") && page.contains("default-src 'none'"), "{page}");
    }
}
