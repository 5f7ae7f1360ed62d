//! README.md: each command prints what the page shows, and each policy is valid.

use std::path::Path;

use tidegate_testkit::client::get;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::echo;

use super::{Block, blocks, read, shell};
use crate::program::{command, serve};

/// Texts before a number that depends on the time at which a command runs.
const TIME_PREFIXES: [&str; 6] =
    ["reset: ", "reset\":", ";t=", "retry-after: ", "retry_after\":", "retry after "];
/// The example from which the Rust code is taken; `cargo test` compiles it.
const RUST_EXAMPLE: &str = "crates/store/examples/several_limits.rs";

/// The reader's folder and the programs that run while the page is read.
struct Reader {
    folder: Folder,
    demo: Option<Tidegate>,
}

impl Reader {
    fn new() -> Self {
        let folder = Folder::new();
        std::fs::create_dir(folder.path("examples")).unwrap();
        folder.write("examples/small-api.yaml", read("examples/small-api.yaml"));
        Self { folder, demo: None }
    }

    /// Does what the block says and returns what its commands print. Panics if the block has no test.
    fn run(&mut self, block: &Block) -> String {
        let text = block.text.trim_end();
        match (block.language.as_str(), text) {
            ("sh", "cargo run --release") => {
                self.demo = Some(serve(&[]));
                String::new()
            }
            ("sh", text) if text.starts_with("tidegate serve ") => self.serve(text),
            ("sh", text) if text.starts_with("tidegate check ") => self.check_misspelled(text),
            ("sh", text) if text.starts_with("tidegate explain ") => self.shell(text),
            ("sh", text) if text.contains("curl ") => {
                let address = &self.demo.as_ref().expect("the page starts the demo first").address;
                self.shell(&text.replace("127.0.0.1:8080", address))
            }
            ("yaml", _) => {
                self.folder.write("policy.yaml", &block.text);
                assert_eq!(self.shell("tidegate check policy.yaml"), "policy.yaml: valid, 3 rules\n");
                self.shell("tidegate explain --config policy.yaml GET /")
            }
            ("rust", text) => {
                assert!(words(&read(RUST_EXAMPLE)).contains(&words(text)), "{RUST_EXAMPLE} has other code");
                String::new()
            }
            ("text", _) => String::new(),
            (language, _) => panic!("README.md:{}: no test runs this `{language}` block", block.line),
        }
    }

    fn shell(&self, commands: &str) -> String {
        let output = shell(self.folder.root(), commands);
        assert!(output.status.success(), "{commands}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a gateway that listens on a free port, in front of a real service.
    fn serve(&self, text: &str) -> String {
        let text = text.replace("http://localhost:3000", &format!("http://{}", echo()));
        let args = text.split_whitespace().skip(1);
        let mut command = command();
        command.current_dir(self.folder.root()).args(args).args(["--listen", "127.0.0.1:0"]);
        let server = Tidegate::start(&mut command);
        assert_eq!(get(&server.address, "").header("x-ratelimit-limit"), Some("100"), "{text}");
        String::new()
    }

    /// Checks the policy of the page with the misspelled key that the page shows.
    fn check_misspelled(&self, text: &str) -> String {
        let path = self.folder.path("policy.yaml");
        let policy = std::fs::read_to_string(&path).unwrap();
        self.folder.write("policy.yaml", policy.replacen("requests", "reqests", 1));
        let output = shell(self.folder.root(), text);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }
}

/// The text without its line breaks and indentation.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text with `N` in place of times and ids.
fn without_times(text: &str) -> String {
    text.lines().map(|line| line_without_times(line) + "\n").collect()
}

fn line_without_times(line: &str) -> String {
    if let Some(date) = line.strip_prefix("date: ") {
        assert!(date.ends_with(" GMT"), "{line}");
        return "date: N".to_owned();
    }
    if let Some(id) = line.strip_prefix("x-request-id: ") {
        assert_eq!(id.len(), 32, "{line}");
        return "x-request-id: N".to_owned();
    }
    let mut line = line.to_owned();
    for prefix in TIME_PREFIXES {
        let parts: Vec<_> = line.split(prefix).map(str::to_owned).collect();
        let rest = parts[1..].iter().map(|part| "N".to_owned() + part.trim_start_matches(char::is_numeric));
        line = [parts[0].clone()].into_iter().chain(rest).collect::<Vec<_>>().join(prefix);
    }
    line
}

#[test]
fn readme_commands_print_the_output_that_it_shows() {
    let blocks = blocks(&read("README.md"));
    let mut reader = Reader::new();
    let mut blocks = blocks.iter().peekable();
    while let Some(block) = blocks.next() {
        let output = reader.run(block).replace("\r\n", "\n");
        // A block without a language is the output of the commands before it.
        let Some(shown) = blocks.next_if(|next| next.language.is_empty()) else { continue };
        assert_eq!(block.language, "sh", "README.md:{}: no command prints this", shown.line);
        assert_eq!(without_times(&output), without_times(&shown.text), "README.md:{}", shown.line);
    }
    assert!(reader.demo.is_some(), "README.md starts no demo");
    assert!(Path::new(&reader.folder.path("policy.yaml")).exists(), "README.md shows no policy");
}

#[test]
fn output_with_other_times_is_equal_and_with_other_counts_is_not() {
    let shown = "retry-after: 6\nratelimit: \"default\";r=0;t=6\ndate: Mon, 16 Nov 2026 08:17:38 GMT\n";
    let later = "retry-after: 55\nratelimit: \"default\";r=0;t=5\ndate: Tue, 17 Nov 2026 08:17:38 GMT\n";
    assert_eq!(without_times(shown), without_times(later));
    assert_ne!(without_times(shown), without_times(&later.replace("r=0", "r=1")));
}
