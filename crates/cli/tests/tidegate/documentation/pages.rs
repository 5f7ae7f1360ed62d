//! The shell commands in docs/, run next to a gateway with the policy `policy.yaml`.

use tidegate_testkit::certificate::Authority;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{RedisServer, Tidegate};
use tidegate_testkit::server::echo;

use super::{Block, api_users, blocks, read, shell};
use crate::program::command;

/// Commands that no test runs: they need another program, root or a container engine.
const NOT_RUN: [&str; 5] = ["uvicorn ", "install ", "systemctl ", "journalctl ", "docker "];
/// Commands that need files of an installation under systemd.
const INSTALLED: &str = "/etc/tidegate/policy.yaml";

/// A gateway in a folder of its own.
struct Installation {
    folder: Folder,
    admin: String,
    server: Tidegate,
    redis: RedisServer,
}

impl Installation {
    fn start() -> Self {
        let (folder, admin) = (Folder::new(), free_address().to_string());
        folder.write("policy.yaml", policy(&admin));
        let server = serve(&folder, "tidegate serve --config policy.yaml");
        Self { folder, admin, server, redis: RedisServer::start() }
    }

    /// Runs one command line of a page.
    fn run(&self, place: &str, line: &str) {
        let redis = self.redis.url();
        let mut line = line.replace("redis://127.0.0.1:6379", &redis);
        // The policy of this gateway has no store.
        if line.starts_with("tidegate doctor") && !line.contains(&redis) {
            line = format!("{line} {redis}");
        }
        if line.contains("tidegate serve ") {
            return start_another(&line);
        }
        let line = line
            .replace("/var/lib/tidegate/", "./")
            .replace("127.0.0.1:9900", &self.admin)
            .replace("127.0.0.1:8080", &self.server.address)
            // nftables needs root.
            .replace("| nft -f -", "| grep -q tidegate");
        let output = shell(self.folder.root(), &line);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() || only_latency_is_a_problem(&printed),
            "{place}: {line}\n{printed}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // curl succeeds with any status; the admin API reports errors in the body.
        assert!(!printed.contains("\"error\""), "{place}: {line}\n{printed}");
    }
}

/// Whether `doctor` finds nothing wrong except that Redis is slow, as it is beside the other tests.
fn only_latency_is_a_problem(printed: &str) -> bool {
    let mut problems = printed.lines().filter(|line| line.starts_with("problem ")).peekable();
    problems.peek().is_some() && problems.all(|line| line.starts_with("problem  latency"))
}

fn policy(admin: &str) -> String {
    format!(
        "admin: {{ listen: {admin} }}\nupstreams: {{ api: {{ servers: [http://{}], breaker: {{ failures: 5 }} }} }}\n\
         routes: [{{ upstream: api }}]\nrate_limits: {{ default: {{ requests: 100, window: 1m }} }}\n",
        echo()
    )
}

/// Starts the gateway of a command line on a free port.
fn serve(folder: &Folder, line: &str) -> Tidegate {
    let (_, args) = line.split_once("tidegate serve ").unwrap();
    let mut command = command();
    command
        .current_dir(folder.root())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(args.split_whitespace());
    command.env("SSL_CERT_FILE", folder.path("ca.pem"));
    Tidegate::start(&mut command)
}

/// Starts one more gateway: in a folder of its own, since two cannot share a state file.
fn start_another(line: &str) {
    let folder = Folder::new();
    folder.write("policy.yaml", policy(&free_address().to_string()));
    folder.write("ca.pem", Authority::new("private authority").pem());
    let socket = folder.text_path("tidegate.socket");
    drop(serve(&folder, &line.replace("/run/tidegate.socket", &socket)));
}

fn command_lines(block: &Block) -> impl Iterator<Item = &str> {
    let is_run = |line: &&str| {
        !line.is_empty()
            && !line.contains(INSTALLED)
            && !NOT_RUN.iter().any(|program| line.starts_with(program))
    };
    block.text.lines().filter(is_run)
}

#[test]
fn shell_commands_in_documentation_pages_succeed() {
    let installation = Installation::start();
    let mut count = 0;
    // The page for users of an API has a gateway of its own.
    for page in all().into_iter().filter(|page| page != api_users::PAGE) {
        for block in blocks(&read(&page)) {
            assert_ne!(block.language, "console", "{page}:{}: use `sh`, which a test runs", block.line);
            for line in command_lines(&block).filter(|_| block.language == "sh") {
                installation.run(&format!("{page}:{}", block.line), line);
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} commands found");
}

/// The pages in docs/, sorted.
pub(super) fn all() -> Vec<String> {
    let files = std::fs::read_dir(format!("{}/docs", crate::program::ROOT)).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let mut names: Vec<_> =
        pages.map(|path| format!("docs/{}", path.file_name().unwrap().display())).collect();
    names.sort();
    names
}
