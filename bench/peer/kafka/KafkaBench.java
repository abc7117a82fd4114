// Benchmark of Kafka's own Java client. It prints one JSON object for each result, as the clients of
// the other systems do. Arguments are NAME=VALUE:
//   mode=stream   n records of size bytes to one topic, then read from its beginning   (produce, consume)
//   mode=latency  n records, each after the acknowledgement of the one before          (latency)
//   mode=half     rate records/s for `seconds`: from the time a record is due to its acknowledgement
//   mode=many     n records to each of `topics` topics at once
//   mode=loss     a topic; after a line of standard input, records with numbers until it ends; then how many
//                 were acknowledged
//   mode=check    reads a topic that `loss` wrote, and prints how many of 0..n-1 are missing
// at=HOST:PORT,...  name=TOPIC  rounds=R  fsync=true (flush.messages=1)  batch=BYTES  window=RECORDS
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class KafkaBench {
  static final Map<String, String> given = new HashMap<>();
  static String get(String name, String otherwise) { return given.getOrDefault(name, otherwise); }
  static int number(String name, int otherwise) { return Integer.parseInt(get(name, "" + otherwise)); }
  static final AtomicLong errors = new AtomicLong();

  static Properties common() { Properties p = new Properties(); p.put("bootstrap.servers", get("at", "")); return p; }

  static KafkaProducer<byte[], byte[]> producer() {
    Properties p = common();
    p.put("acks", "all");
    p.put("batch.size", get("batch", "16384"));
    p.put("max.request.size", "" + Math.max(1 << 20, 2 * number("batch", 16384)));
    p.put("buffer.memory", "" + (128 << 20));
    if (!get("linger", "").isEmpty()) p.put("linger.ms", get("linger", ""));
    return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
  }

  static void create(Admin admin, List<String> names) throws Exception {
    List<NewTopic> topics = new ArrayList<>();
    Map<String, String> settings = get("fsync", "false").equals("true") ? Map.of("flush.messages", "1") : Map.of();
    for (String name : names) topics.add(new NewTopic(name, 1, (short) 3).configs(settings));
    admin.createTopics(topics).all().get();
  }

  static void delete(Admin admin, List<String> names) throws Exception { admin.deleteTopics(names).all().get(); }

  static String json(String kind, Object... pairs) {
    StringBuilder b = new StringBuilder("{\"kind\": \"" + kind + "\", \"errors\": " + errors.getAndSet(0));
    for (int i = 0; i < pairs.length; i += 2) b.append(String.format(Locale.ROOT, ", \"%s\": %.3f", pairs[i], ((Number) pairs[i + 1]).doubleValue()));
    return b.append("}").toString();
  }

  static void print(String line) { System.out.println(line); System.out.flush(); }

  static double at(long[] sorted, int length, double share) { return sorted[Math.min(length - 1, (int) (length * share))] / 1e6; }

  static byte[] payload(int size) { byte[] p = new byte[size]; new Random(1).nextBytes(p); return p; }

  static void send(KafkaProducer<byte[], byte[]> producer, List<String> topics, int each, byte[] payload) throws Exception {
    Semaphore all = new Semaphore(0);
    for (int n = 0; n < each; n++)
      for (String topic : topics)
        producer.send(new ProducerRecord<>(topic, payload), (m, e) -> { if (e != null) errors.incrementAndGet(); all.release(); });
    producer.flush();
    all.acquire(each * topics.size());
  }

  static void stream(Admin admin, KafkaProducer<byte[], byte[]> producer, String topic, int n, byte[] payload) throws Exception {
    create(admin, List.of(topic));
    send(producer, List.of(topic), 1, payload);
    long began = System.nanoTime();
    send(producer, List.of(topic), n, payload);
    double seconds = (System.nanoTime() - began) / 1e9;
    print(json("produce", "records", n, "rate_per_s", n / seconds, "mb_per_s", n / seconds * payload.length / 1e6));
    Properties p = common();
    p.put("max.poll.records", "20000");
    p.put("fetch.max.bytes", "" + (64 << 20));
    p.put("max.partition.fetch.bytes", "" + (16 << 20));
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      TopicPartition partition = new TopicPartition(topic, 0);
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      int seen = 0;
      began = System.nanoTime();
      while (seen < n + 1) seen += consumer.poll(Duration.ofSeconds(1)).count();
      seconds = (System.nanoTime() - began) / 1e9;
      print(json("consume", "records", seen, "rate_per_s", seen / seconds, "mb_per_s", seen / seconds * payload.length / 1e6));
    }
    delete(admin, List.of(topic));
  }

  static void latency(Admin admin, KafkaProducer<byte[], byte[]> producer, String topic, int n, byte[] payload) throws Exception {
    create(admin, List.of(topic));
    send(producer, List.of(topic), 1, payload);
    long[] took = new long[n];
    for (int i = 0; i < n; i++) {
      long began = System.nanoTime();
      producer.send(new ProducerRecord<>(topic, payload)).get();
      took[i] = System.nanoTime() - began;
    }
    Arrays.sort(took);
    print(json("latency", "records", n, "p50_ms", at(took, n, .5), "p99_ms", at(took, n, .99)));
    delete(admin, List.of(topic));
  }

  static void half(Admin admin, KafkaProducer<byte[], byte[]> producer, String topic, int rate, int seconds, byte[] payload) throws Exception {
    create(admin, List.of(topic));
    send(producer, List.of(topic), 1, payload);
    int n = rate * seconds;
    long[] took = new long[n];
    Semaphore all = new Semaphore(0);
    long began = System.nanoTime();
    for (int i = 0; i < n; i++) {
      final long due = began + (long) (i * 1e9 / rate);
      for (long wait; (wait = due - System.nanoTime()) > 0; ) if (wait > 200_000) Thread.sleep(1); else Thread.onSpinWait();
      final int number = i;
      producer.send(new ProducerRecord<>(topic, payload), (m, e) -> {
        if (e != null) errors.incrementAndGet();
        took[number] = System.nanoTime() - due;
        all.release();
      });
    }
    producer.flush();
    all.acquire(n);
    double lasted = (System.nanoTime() - began) / 1e9;
    Arrays.sort(took);
    print(json("half", "records", n, "rate_per_s", n / lasted, "p50_ms", at(took, n, .5), "p99_ms", at(took, n, .99)));
    delete(admin, List.of(topic));
  }

  static void many(Admin admin, KafkaProducer<byte[], byte[]> producer, String topic, int topics, int n, byte[] payload) throws Exception {
    List<String> names = new ArrayList<>();
    for (int i = 0; i < topics; i++) names.add(topic + "-" + i);
    long began = System.nanoTime();
    create(admin, names);
    send(producer, names, 1, payload);
    double created = (System.nanoTime() - began) / 1e9;
    began = System.nanoTime();
    send(producer, names, n, payload);
    double seconds = (System.nanoTime() - began) / 1e9;
    print(json("many", "records", n * topics, "rate_per_s", n * topics / seconds, "created_s", created));
  }

  // Acknowledgements come in order. Nothing counts after the first failure, so that the number printed
  // is n if exactly 0..n-1 were acknowledged before it.
  static void loss(Admin admin, String topic, int size) throws Exception {
    create(admin, List.of(topic));
    KafkaProducer<byte[], byte[]> producer = producer();
    AtomicLong acknowledged = new AtomicLong();
    AtomicBoolean failed = new AtomicBoolean();
    Semaphore window = new Semaphore(number("window", 1000));
    Thread sender = new Thread(() -> {
      try {
        for (long number = 0; ; number++) {
          window.acquire();
          byte[] body = new byte[size];
          java.nio.ByteBuffer.wrap(body).putLong(number);
          producer.send(new ProducerRecord<>(topic, body), (m, e) -> { if (e != null) failed.set(true); else if (!failed.get() && acknowledged.incrementAndGet() == 1) print("{\"kind\": \"first\"}"); window.release(); });
        }
      } catch (InterruptedException | RuntimeException ended) { /* the servers are gone */ }
    });
    sender.setDaemon(true);
    print("{\"kind\": \"created\"}");
    System.in.read();
    sender.start();
    while (System.in.read() >= 0) { }
    print(json("loss", "acknowledged", acknowledged.get()));
    Runtime.getRuntime().halt(0);
  }

  static void check(String topic, long n) throws Exception {
    Properties p = common();
    BitSet seen = new BitSet((int) n);
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      TopicPartition partition = new TopicPartition(topic, 0);
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      long end = consumer.endOffsets(List.of(partition), Duration.ofSeconds(60)).get(partition);
      while (consumer.position(partition) < end)
        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofSeconds(1))) {
          long number = java.nio.ByteBuffer.wrap(r.value()).getLong();
          if (number < n) seen.set((int) number);
        }
    }
    print(json("check", "lost", n - seen.cardinality()));
  }

  public static void main(String[] arguments) throws Exception {
    for (String one : arguments) given.put(one.substring(0, one.indexOf('=')), one.substring(one.indexOf('=') + 1));
    String mode = get("mode", "stream"), name = get("name", "bench");
    int n = number("n", 100_000), size = number("size", 100);
    if (mode.equals("check")) { check(name, n); return; }
    Properties patient = common();
    patient.put("default.api.timeout.ms", "150000");  // A thousand topics take a while.
    try (Admin admin = Admin.create(patient)) {
      while (admin.describeCluster().nodes().get().size() < 3) Thread.sleep(100);
      if (mode.equals("loss")) { loss(admin, name, size); return; }
      byte[] payload = payload(size);
      try (KafkaProducer<byte[], byte[]> producer = producer()) {
        for (int round = 0; round < number("rounds", 1); round++) {
          String topic = name + "-" + round;
          switch (mode) {
            case "stream": stream(admin, producer, topic, n, payload); break;
            case "latency": latency(admin, producer, topic, n, payload); break;
            case "half": half(admin, producer, topic, number("rate", 10_000), number("seconds", 5), payload); break;
            case "many": many(admin, producer, topic, number("topics", 1000), n, payload); break;
            default: throw new IllegalArgumentException("no such mode: " + mode);
          }
        }
      }
    }
  }
}
