//! "Did you mean": the nearest of the known words.

/// Longer words are nobody's slip of the finger, and the distance costs the product of the lengths.
const LONGEST_CHARS: usize = 48;

/// The word of `known` that is nearest to `word`, if near enough to be a slip: one edit for each three letters.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    if length > LONGEST_CHARS {
        return None;
    }
    let allowed = length.div_ceil(3);
    known
        .into_iter()
        .map(|candidate| (edits(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that make `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if swapped {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = core::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let known = ["fence", "invalidate", "drain"];
        assert_eq!(nearest("fense", known), Some("fence"));
        assert_eq!(nearest("invaildate", known), Some("invalidate"));
        assert_eq!(nearest("drian", known), Some("drain"));
        assert_eq!(nearest("pools", known), None);
        assert_eq!(nearest(&"f".repeat(1000), known), None);
    }

    #[test]
    fn edits_are_counted_once() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "acb"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
