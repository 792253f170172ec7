//! The simulated server replies like a real one, to random commands here and to the scripts of random operations in `held`.

use fastrand::Rng;
use limiter_redis::{Connection, RedisStore};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, Pipeline, RedisFuture, Value};
use sim::Direct;
use testbed::server::Server;

use crate::support::{builder, size};

/// A reply, or an error's code and text without the place in the script.
fn comparable(reply: Result<Value, redis::RedisError>) -> Result<Value, String> {
    let text = |error: redis::RedisError| {
        let text = error.to_string();
        // Valkey says less than Redis about a script that it does not know.
        let text = text.replace(" Please use EVAL.", "");
        text.split(" script:").next().unwrap_or_default().to_owned()
    };
    reply.and_then(Value::extract_error).map_err(text)
}

/// A connection to a real server and to the simulated one, which both execute each command.
#[derive(Clone)]
struct OnBoth(ConnectionManager, Direct);

/// Returns a store whose commands both execute. After each script, both hold the same.
pub(crate) async fn on_both(server: &Server, simulated: &Direct) -> RedisStore {
    let client = Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new().set_response_timeout(None);
    let real = ConnectionManager::new_with_config(client, config).await;
    let both = OnBoth(real.unwrap(), simulated.clone());
    let store = builder().with_connection(Connection::new(both));
    store.unwrap()
}

impl ConnectionLike for OnBoth {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let Self(real, simulated) = self;
        Box::pin(async move {
            let reply = real.req_packed_command(cmd).await;
            let expected = comparable(reply.clone());
            assert_eq!(comparable(simulated.execute(cmd)), expected);
            let words: Vec<&[u8]> = cmd
                .args_iter()
                .map(|arg| match arg {
                    redis::Arg::Simple(bytes) => bytes,
                    _ => &[],
                })
                .collect();
            if words[0].starts_with(b"EVAL") {
                let mut all = redis::cmd("ZRANGE");
                all.arg(words[3]).arg(0).arg(-1).arg("WITHSCORES");
                let held = comparable(real.req_packed_command(&all).await);
                assert_eq!(comparable(simulated.execute(&all)), held);
            }
            reply
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        all: &'a Pipeline,
        from: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(all, from, count)
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// `lex` stands for a key whose scores are all 0, as those of entries are, and `scored` for one with other scores.
const COMMANDS: [&str; 23] = [
    "ZADD lex 0 MEMBER",
    "ZADD lex 0 MEMBER 0 MEMBER",
    "ZADD scored SCORE MEMBER",
    "ZADD scored SCORE MEMBER SCORE MEMBER",
    "ZREM KEY MEMBER",
    "ZCARD KEY",
    "ZSCORE KEY MEMBER",
    "ZRANK KEY MEMBER",
    "ZRANGE KEY INDEX INDEX",
    "ZRANGE KEY INDEX INDEX REV",
    "ZRANGE KEY INDEX INDEX WITHSCORES",
    "ZRANGEBYLEX lex BOUND BOUND",
    "ZRANGEBYLEX lex BOUND BOUND LIMIT NUMBER NUMBER",
    "ZREVRANGEBYLEX lex BOUND BOUND LIMIT NUMBER NUMBER",
    "ZLEXCOUNT lex BOUND BOUND",
    "ZCOUNT scored -inf (SCORE",
    "ZCOUNT scored -inf SCORE",
    "ZREMRANGEBYLEX lex [MEMBER (MEMBER",
    "ZREMRANGEBYRANK KEY 0 NUMBER",
    "PTTL missing",
    "PEXPIRE KEY 1NUMBER000000",
    "PEXPIRE KEY 0",
    "UNLINK KEY",
];

/// Replaces a word in capitals by a random one.
fn fill_in(text: &str, random: &mut Rng) -> String {
    let member = |random: &mut Rng| random.char('a'..='e').to_string();
    let (name, value) = match text {
        // The names of commands and options.
        _ if text.starts_with(['Z', 'W', 'P']) => return text.to_owned(),
        _ if text.contains("KEY") => ("KEY", ["lex", "scored"][random.usize(..2)].to_owned()),
        _ if text.contains("MEMBER") => ("MEMBER", member(random) + &member(random)),
        _ if text.contains("SCORE") => ("SCORE", random.i8(-3..=3).to_string()),
        _ if text.contains("INDEX") => ("INDEX", random.i8(-9..=9).to_string()),
        _ if text.contains("NUMBER") => ("NUMBER", random.u8(..6).to_string()),
        _ if text.contains("BOUND") => {
            let bound = ["-", "+", "[MEMBER", "(MEMBER"][random.usize(..4)];
            ("BOUND", fill_in(bound, random))
        }
        _ => return text.to_owned(),
    };
    text.replace(name, &value)
}

#[tokio::test]
async fn random_commands_get_the_replies_of_a_real_server() {
    let server = Server::start().unwrap();
    let mut connection = Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let simulated = Direct::default();
    let mut random = Rng::with_seed(7);
    for number in 0..size(30_000, 100_000) {
        let template =
            COMMANDS[random.usize(..COMMANDS.len() - if number % 8 > 0 { 2 } else { 0 })];
        // Few keys are removed, so that they grow.
        let words = template.split(' ').map(|word| fill_in(word, &mut random));
        let mut command = Cmd::new();
        for word in words.collect::<Vec<_>>() {
            command.arg(word);
        }
        let expected = comparable(command.query(&mut connection));
        let got = comparable(simulated.execute(&command));
        assert_eq!(got, expected, "{number}: {command:?}");
    }
}
