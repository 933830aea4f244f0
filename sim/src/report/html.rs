//! What all pages have in common: one HTML file without scripts that needs nothing else, light or dark as the reader prefers,
//! and fit to be printed.

use super::svg::escaped;

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #ffffff; --text: #24292f; --soft: #57606a; --line: #d8dee4; }
@media screen and (prefers-color-scheme: dark) { :root { --ground: #0d1117; --text: #e6edf3; --soft: #9da7b3; --line: #30363d; } }
body { background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, 'DejaVu Sans', sans-serif; max-width: 50rem; \
margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-bottom: .2rem; }
.verdict { font-size: 1.15rem; } .soft { color: var(--soft); } svg { max-width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } code { overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: .85rem; }
.t { fill: var(--text); font-size: 12px; }
.key { display: inline-block; width: 1em; height: .8em; margin: 0 .3em 0 .9em; vertical-align: middle; }
@media print { :root { color-scheme: light; } body { max-width: none; margin: 0; font-size: 11pt; } .wide { overflow: visible; } svg, tr { break-inside: avoid; } \
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

/// A drawing, which is moved aside where it would be too small to read.
pub fn drawing(svg: &str) -> String {
    format!("<div class=\"wide\">{svg}</div>\n")
}

/// A table: a head, then rows of as many cells, all of them text. The first column is aligned to the left.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: String = rows.iter().map(|cells| row("td", cells.iter().map(|cell| escaped(cell)))).collect();
    framed(head, &rows)
}

/// The same, where the first cell of each row leads to an address: of a place in the page, or of a file beside it.
pub fn linked_table(head: &[&str], rows: &[(String, Vec<String>)]) -> String {
    let linked = |(address, cells): &(String, Vec<String>)| {
        let link = |cell: &String| format!("<a href=\"{}\">{}</a>", escaped(address), escaped(cell));
        row("td", cells.iter().take(1).map(link).chain(cells.iter().skip(1).map(|cell| escaped(cell))))
    };
    framed(head, &rows.iter().map(linked).collect::<String>())
}

fn framed(head: &[&str], rows: &str) -> String {
    format!("<div class=\"wide\"><table>{}{rows}</table></div>\n", row("th", head.iter().map(|cell| escaped(cell))))
}

/// The cells are HTML.
fn row(tag: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("<{tag}>{cell}</{tag}>")).collect();
    format!("<tr>{cells}</tr>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_title_or_a_cell_says_is_text() {
        let page = begin("<script>", "") + &table(&["a & b"], &[vec!["<img src=x>".to_owned()]]) + END;
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(page.contains("<th>a &amp; b</th>") && page.contains("default-src 'none'"), "{page}");
        let linked = linked_table(&["a"], &[("\"><img".to_owned(), vec!["<b>".to_owned(), "<i>".to_owned()])]);
        assert!(drawing("<svg>").contains("class=\"wide\"") && page.contains("min-width: 34rem"), "{page}");
        assert!(!page.contains("@media (prefers"), "paper is light: {page}");
        assert!(linked.contains("<td><a href=\"&quot;&gt;&lt;img\">&lt;b&gt;</a></td><td>&lt;i&gt;</td>"), "{linked}");
    }
}
