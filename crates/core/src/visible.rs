//! Which characters of a text can be shown as they are.

/// Whether a character is harmless in a line for people: it cannot end the line, control a terminal, change the direction
/// of text, or be overlooked, so that two different names look the same.
///
/// The invisible characters are those with the Unicode property `Default_Ignorable_Code_Point`, white space other than the
/// space, and characters with an empty glyph.
///
/// ```
/// use tidegate_core::is_visible;
///
/// assert!("user 1, größe, 名前, 🙂".chars().all(is_visible));
/// assert!(!is_visible('\u{202e}') && !is_visible('\n') && !is_visible('\u{ad}'));
/// ```
pub fn is_visible(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    let is_ignorable = matches!(c,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{13430}'..='\u{13440}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}'
    );
    let is_empty = matches!(c, '\u{2800}' | '\u{16fe4}' | '\u{1d159}');
    !(c.is_control() || c.is_whitespace() || is_ignorable || is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_that_cannot_be_seen_is_not_visible() {
        let invisible = "\0\t\n\r\u{1b}\u{7f}\u{85}\u{a0}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{180e}\u{2003}\
            \u{200b}\u{200d}\u{2028}\u{202e}\u{2060}\u{2069}\u{206f}\u{2800}\u{3000}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\
            \u{fff9}\u{13430}\u{13440}\u{1d173}\u{e0001}\u{e0041}\u{e007f}\u{e0100}\u{e01ef}";
        for c in invisible.chars() {
            assert!(!is_visible(c), "{}", c.escape_unicode());
        }
        for c in " !~é€ßя中한あ🙂\u{fffd}\u{301}".chars() {
            assert!(is_visible(c), "{}", c.escape_unicode());
        }
    }
}
