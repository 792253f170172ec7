//! URLs, and mistakes in them and in the server's configuration.

use limiter_core::{ErrorKind, Limiter, policy};
use limiter_postgres::{PostgresStore, PostgresUrl};
use testbed::postgres::TERMINATE;
use testbed::server::Postgres;

use crate::{SERVER, TIMEOUT, acquire, client, eventually, opened, run};

#[tokio::test]
async fn a_url_opens_a_table_and_shows_no_password() {
    let server = Postgres::start().unwrap();
    let opened = |user: &str| {
        let url: PostgresUrl = server.url().replace("limiter", user).parse().unwrap();
        assert_eq!(url.to_string(), server.url().replace("limiter:secret@", ""));
        let table = url.open_maintained().unwrap().timeout(TIMEOUT);
        Limiter::new("search", policy!("9/1h"), PostgresStore::new(table))
    };
    assert_eq!(opened("limiter").acquire("one").await.unwrap().used(), 1);
    let client = client(&server).await;
    let role = "CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON limiter_logs TO app; \
         REVOKE CREATE ON SCHEMA public FROM PUBLIC";
    run(&client, role).await;
    assert_eq!(opened("app").acquire("one").await.unwrap().used(), 2);
    run(&client, "DROP TABLE limiter_logs").await;
    let error = opened("app").acquire("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("let an owner run"), "{error}");

    for (url, shown) in [
        ("postgresql://u:secret@[::1]:1/d", "postgres://[::1]:1/d"),
        ("postgres://u:secret@a:1,b:2/d", "postgres://a:1,b:2/d"),
        ("postgres://a,b", "postgres://a:5432,b:5432"),
        (
            "postgres:///d?host=/run&password=secret",
            "postgres:///run/d",
        ),
        (
            "postgres://a?sslmode=require&user=secret&pool=3",
            "postgres://a:5432",
        ),
    ] {
        let url: PostgresUrl = url.parse().unwrap();
        assert_eq!(url.to_string(), shown);
        assert!(!format!("{url:?}").contains("secret"), "{url:?}");
    }
}

#[test]
fn a_mistake_in_a_url_is_named_and_no_password() {
    for (url, text) in [
        ("postgres://u:secret", "invalid value for option `port`"),
        ("postgres://u:secret#@h", "percent-encode"),
        ("postgres://u:secret@h/a@b", "percent-encode"),
        ("postgres://u@h?sec/ret=1", "unknown option"),
        ("postgres://u:secret@h?x=1", "unknown option `x`"),
        (
            "postgres://u:secret@h?pgbouncer=true",
            "`pgbouncer`: leave it out",
        ),
        (
            "postgres://u:secret@h?schema=s",
            "`schema`: write options=-csearch_path%3DNAME",
        ),
        (
            "postgres://u:secret@h?sslrootcert=f",
            "`sslrootcert`: pass the file with --store-tls-ca",
        ),
        (
            "postgres://u@h?sslmode=secret",
            "disable, require or verify-full",
        ),
        (
            "postgres://u@h?sslmode=require&sslmode=disable",
            "expected one sslmode",
        ),
        (
            "postgres://u@h?pool=0",
            "expected pool=N, with N from 1 to 1000",
        ),
        ("postgres://u@h?pool=secret", "expected pool=N"),
        ("postgres://u@h?connect_timeout=secret", "`connect_timeout`"),
        (
            "postgres://u@h?password_file=%2Fno%20where",
            "password_file=/no where: No such file",
        ),
        ("postgres:secret", "expected postgres:// or postgresql://"),
        ("POSTGRES://u:secret@h", "found POSTGRES://"),
        (
            "jdbc:postgresql://h/d?password=secret",
            "found jdbc:postgresql://",
        ),
        ("\"postgres://u:secret@h\"", "without quotes"),
        ("postgres://", "with a host"),
        ("postgres://%ff", "malformed"),
        ("postgres://a/d?host=b&password=secret", "postgres://a,b/"),
    ] {
        let error = url.parse::<PostgresUrl>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
        let error = error.to_string();
        assert!(
            error.contains(text) && !error.contains("secret"),
            "{url}: {error}"
        );
    }
}

/// A file is read for each connection, without blocking the thread of the runtime.
#[tokio::test]
async fn a_password_may_be_rotated() {
    let server = Postgres::start().unwrap();
    let client = client(&server).await;
    let hba = client.query_one("SHOW hba_file", &[]).await.unwrap();
    let hba: String = hba.get(0);
    let rules = format!(
        "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'first'; \
         COPY (SELECT unnest('{{host all app all scram-sha-256,host all all all trust}}'::text[])) TO '{hba}'; \
         SELECT pg_reload_conf()"
    );
    run(&client, &rules).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let url = server.url().replace("limiter:secret", "app:old");
    let search = opened(&format!("{url}?pool=1&password_file={}", file.display()));
    eventually(async || acquire(&search, "k").await).await;
    run(
        &client,
        &format!("ALTER ROLE app PASSWORD 'second '; {TERMINATE}"),
    )
    .await;
    let refused = async || match search.acquire("k").await {
        Err(error) if error.kind() == ErrorKind::Configuration => Ok(()),
        other => Err(other),
    };
    eventually(refused).await;
    std::fs::write(&file, "second \r\n").unwrap();
    eventually(async || acquire(&search, "k").await).await;
    // A read of a pipe waits for a writer.
    let [pipe, other] = ["pipe", "other"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::fs::rename(&file, &other).unwrap();
    std::fs::hard_link(&pipe, &file).unwrap();
    run(&client, TERMINATE).await;
    let error = eventually(async || match search.acquire("k").await {
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(error),
        other => Err(other),
    });
    assert!(error.await.to_string().contains("no response within"));
    std::fs::rename(&other, &file).unwrap();
    std::fs::write(&pipe, "second ").unwrap();
    eventually(async || acquire(&search, "k").await).await;
    // Without the file, the password of the URL is used.
    std::fs::remove_file(&file).unwrap();
    run(&client, TERMINATE).await;
    eventually(refused).await;
    run(&client, "ALTER ROLE app PASSWORD 'old'").await;
    eventually(async || acquire(&search, "k").await).await;
}

/// What an operator has to mend is no outage.
#[tokio::test]
async fn a_mistake_in_the_configuration_is_an_error_that_says_what_to_do() {
    let clock = "CREATE SCHEMA clock; CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz \
         LANGUAGE sql AS $$SELECT timestamptz '1900-01-01'$$";
    run(&client(&SERVER).await, clock).await;
    let mut cases = vec![
        (
            "options=-csearch_path%3Dclock,pg_catalog,public",
            "Postgres' clock: the system time is before the Unix epoch",
        ),
        (
            "options=-csearch_path%3Dnowhere",
            "no schema has been selected to create in",
        ),
        ("dbname=nowhere", "database \"nowhere\" does not exist"),
        ("user=nobody", "role \"nobody\" does not exist"),
    ];
    if cfg!(feature = "tls") {
        cases.push(("sslmode=require", "server does not support TLS"));
    }
    for (option, text) in cases {
        let url: PostgresUrl = format!("{}?{option}", SERVER.url()).parse().unwrap();
        let table = url.open_maintained().unwrap().timeout(TIMEOUT);
        let search = Limiter::new("search", policy!("9/1h"), PostgresStore::new(table));
        let error = search.acquire("mistakes").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{option}: {error}");
        assert!(error.to_string().contains(text), "{option}: {error}");
    }
}

/// The certificate of Postgres' manual signs itself, and so is an authority.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_certificate_that_signs_itself_is_a_mistake_and_one_that_is_signed_works() {
    let folder = tempfile::tempdir().unwrap();
    testbed::write_certificates(folder.path());
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for (name, is_accepted) in [("ca", false), ("server", true)] {
        let certificate = file(&format!("{name}.pem"));
        let key = file(&format!("{name}.key"));
        let server = Postgres::start_with_tls(&certificate, &key, None).unwrap();
        let url: PostgresUrl = (server.url() + "?sslmode=verify-full").parse().unwrap();
        let url = url.certificates(Some(file("ca.pem").into_bytes()), None);
        let table = url.open_maintained().unwrap().timeout(TIMEOUT);
        let search = Limiter::new("search", policy!("9/1h"), PostgresStore::new(table));
        match search.acquire("one").await {
            Ok(decision) => assert!(is_accepted && decision.is_allowed()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
                assert!(error.to_string().contains("create an authority"), "{error}");
                assert!(!is_accepted);
            }
        }
    }
}
