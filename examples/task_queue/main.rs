//! Tasks on RabbitMQ with a priority from the customer's usage of the last hour, so that a light customer overtakes a heavy one:
//! `cargo run --example task_queue --features redis -- amqp://127.0.0.1:5672 [memory | redis://…]`
//!
//! It publishes tasks of a batch job and of two people, and prints the order in which a worker gets them. Nobody is denied.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use exact_limiter::store::MAX_COST;
use exact_limiter::{Limit, Limiter, MemoryStore, RedisStore, SharedStore};
use futures::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// For each priority, the number of earlier tasks in the last hour below which it applies. 3 is served first, 0 last.
const BANDS: [(u64, u8); 3] = [(2, 3), (10, 2), (50, 1)];
const HIGHEST: u8 = BANDS[0].1;

fn priority(used_before: u64) -> u8 {
    BANDS.iter().find(|(up_to, _)| used_before < *up_to).map_or(0, |(_, priority)| *priority)
}

/// A queue of tasks, and the meter of its customers.
struct Tasks {
    channel: Channel,
    queue: &'static str,
    meter: Limiter,
}

impl Tasks {
    async fn open(channel: Channel, queue: &'static str, store: SharedStore) -> Result<Self> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-priority".into(), AMQPValue::ShortShortUInt(HIGHEST));
        channel.queue_declare(queue.into(), QueueDeclareOptions::default(), arguments).await?;
        // A meter is a limit that nothing reaches.
        let meter = Limiter::new("tasks", Limit::new(MAX_COST, Duration::from_secs(3600))?, store);
        Ok(Self { channel, queue, meter })
    }

    /// Publishes a task and returns its priority.
    async fn publish(&self, customer: &str) -> Result<u8> {
        // The usage includes the task that is just recorded.
        let usage = self.meter.record(customer).await?;
        let priority = priority(usage.used() - 1);
        let properties = BasicProperties::default().with_priority(priority);
        let options = BasicPublishOptions::default();
        self.channel
            .basic_publish("".into(), self.queue.into(), options, customer.as_bytes(), properties)
            .await?
            .await?;
        Ok(priority)
    }

    /// Works on this many tasks, and returns their customers in order.
    async fn work(&self, count: usize) -> Result<Vec<String>> {
        let options = BasicConsumeOptions::default();
        let tasks = self.channel.basic_consume(self.queue.into(), "worker".into(), options, FieldTable::default());
        let mut tasks = tasks.await?.take(count);
        let mut customers = Vec::new();
        while let Some(task) = tasks.next().await {
            let task = task?;
            task.ack(BasicAckOptions::default()).await?;
            customers.push(String::from_utf8(task.data.clone())?);
        }
        Ok(customers)
    }
}

/// Publishes sixty tasks of a batch job, then one of ann and one of ben. Returns the customers in the order of the work.
async fn run(broker: &str, store: SharedStore) -> Result<Vec<String>> {
    let connection = Connection::connect(broker, ConnectionProperties::default()).await?;
    let tasks = Tasks::open(connection.create_channel().await?, "tasks", store).await?;
    for customer in std::iter::repeat_n("batch job", 60).chain(["ann", "ben"]) {
        let priority = tasks.publish(customer).await?;
        println!("{customer} publishes a task with priority {priority}");
    }
    let customers = tasks.work(62).await?;
    connection.close(200, "done".into()).await?;
    Ok(customers)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let broker = args.next().unwrap_or_else(|| "amqp://127.0.0.1:5672".to_owned());
    let store: SharedStore = match args.next().as_deref() {
        None | Some("memory") => Arc::new(MemoryStore::new()),
        Some(url) => Arc::new(RedisStore::connect(url).await?),
    };
    for (i, customer) in run(&broker, store).await?.iter().enumerate() {
        println!("task {} is of {customer}", i + 1);
    }
    Ok(())
}
