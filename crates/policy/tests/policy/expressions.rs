//! What conditions with mistakes are answered.

use tidegate_policy::Expression;

#[test]
fn syntax_error_says_in_plain_words_what_is_wrong_and_how_to_fix_it() {
    for (source, what, hint) in [
        ("request.method = 'GET'", "`=` is not an operator", "write `==`"),
        ("request.method === 'GET'", "`===` is not an operator", "write `==`"),
        ("request.method <> 'GET'", "`<>` is not an operator", "write `!=`"),
        ("request.method is 'GET'", "`is` is not an operator", "write `==`"),
        ("true & false", "`&` is not an operator", "write `&&`"),
        ("true and false", "`and` is not an operator", "write `&&`"),
        ("true or false", "`or` is not an operator", "write `||`"),
        ("request.path matches '^/a'", "`matches` is not an operator", "write `request.path.matches("),
        ("request.method == 'GET", "a quoted text has no end", "add '"),
        ("(request.method == 'GET'", "`(` has no `)`", "add `)`"),
        ("request.method in ['GET'", "`[` has no `]`", "add `]`"),
        ("request.method == 'GET')", "`)` closes nothing", "remove it"),
        ("request.method ==", "the expression is not complete", "write for example"),
        ("$x == 1", "`$` is not part of CEL", "write for example"),
        ("if request.method == 'GET'", "`if` is not expected here", "write for example"),
        ("not (request.method == 'GET')", "unknown function `not`", "write `!`"),
        ("request.method == GET", "unknown variable `GET`", "in quotes: `\"GET\"`"),
    ] {
        let error = Expression::compile(source).unwrap_err();
        assert!(error.what().starts_with(what), "{source}: {}", error.what());
        assert!(error.hint().contains(hint), "{source}: {}", error.hint());
    }
}
