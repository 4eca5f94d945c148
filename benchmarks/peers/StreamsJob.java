import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams' way to event-time order: a state store sorted by time, exactly once.
 *
 * <pre>StreamsJob bounded|steady BOOTSTRAP_SERVERS INPUT OUTPUT FOLDER DELAY_S</pre>
 *
 * Rows wait in a persistent store by time and offset. Each row that the time of its partition has
 * passed by the delay goes out; a row behind that is dropped. Bounded, it puts out the rest at the
 * end of what was there at the start, and prints the seconds from its start until all is committed.
 */
public final class StreamsJob {
    private static final String STORE = "waiting";
    private static final int THREADS = 2;
    private static final long COMMIT_MS = 100;
    private static final long RELEASE_MS = 50;
    private static final long LOOK_MS = 20;

    private StreamsJob() {}

    public static void main(String[] words) throws Exception {
        boolean bounded = words[0].equals("bounded");
        String brokers = words[1];
        String source = words[2];
        String sink = words[3];
        String application = sink + ".streams";
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", brokers))) {
            Map<TopicPartition, Long> ends = bounded ? ends(admin, source) : Map.of();
            Topology topology = new Topology();
            topology.addSource(
                    "arrived",
                    Serdes.ByteArray().deserializer(),
                    Serdes.ByteArray().deserializer(),
                    source);
            long delayMs = 1000 * Long.parseLong(words[5]);
            topology.addProcessor("order", () -> new Order(delayMs, ends), "arrived");
            topology.addStateStore(
                    Stores.keyValueStoreBuilder(
                            Stores.persistentKeyValueStore(STORE), Serdes.Bytes(), Serdes.ByteArray()),
                    "order");
            topology.addSink(
                    "ordered",
                    sink,
                    Serdes.ByteArray().serializer(),
                    Serdes.ByteArray().serializer(),
                    "order");
            KafkaStreams streams = new KafkaStreams(topology, settings(brokers, application, words[4]));
            AtomicReference<Throwable> failure = new AtomicReference<>();
            streams.setUncaughtExceptionHandler(error -> {
                failure.set(error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
            long startedNs = System.nanoTime();
            streams.start();
            while (!bounded || !isCommitted(admin, application, ends)) {
                if (failure.get() != null) {
                    failure.get().printStackTrace();
                    System.exit(1);
                }
                Thread.sleep(LOOK_MS);
            }
            double seconds = (System.nanoTime() - startedNs) / 1e9;
            streams.close();
            System.out.println("{\"seconds\": " + seconds + "}");
        }
    }

    private static Properties settings(String brokers, String application, String folder) {
        Properties found = new Properties();
        found.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        found.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, brokers);
        found.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        found.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        found.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, COMMIT_MS);
        found.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, THREADS);
        found.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        found.put(StreamsConfig.DEFAULT_TIMESTAMP_EXTRACTOR_CLASS_CONFIG, EventTime.class);
        found.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        found.put(StreamsConfig.consumerPrefix("max.poll.records"), 10_000);
        found.put(StreamsConfig.producerPrefix("compression.type"), "lz4");
        found.put(StreamsConfig.producerPrefix("linger.ms"), 5);
        found.put(StreamsConfig.producerPrefix("batch.size"), 256 << 10);
        return found;
    }

    private static Map<TopicPartition, Long> ends(Admin admin, String topic) throws Exception {
        Map<TopicPartition, OffsetSpec> asked = new TreeMap<>(
                (one, other) -> Integer.compare(one.partition(), other.partition()));
        admin.describeTopics(java.util.List.of(topic))
                .allTopicNames()
                .get()
                .get(topic)
                .partitions()
                .forEach(one -> asked.put(new TopicPartition(topic, one.partition()), OffsetSpec.latest()));
        Map<TopicPartition, Long> found = new java.util.HashMap<>();
        admin.listOffsets(asked).all().get().forEach((partition, end) -> {
            if (end.offset() > 0) {
                found.put(partition, end.offset());
            }
        });
        return found;
    }

    /** The offsets are committed in one transaction with what was made of the rows before them. */
    private static boolean isCommitted(
            Admin admin, String application, Map<TopicPartition, Long> ends) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> committed =
                admin.listConsumerGroupOffsets(application).partitionsToOffsetAndMetadata().get();
        return ends.entrySet().stream().allMatch(end -> {
            OffsetAndMetadata reached = committed.get(end.getKey());
            return reached != null && reached.offset() >= end.getValue();
        });
    }

    /** The number behind {@code "occurred_at":}. */
    public static final class EventTime implements TimestampExtractor {
        private static final byte[] FIELD = "\"occurred_at\":".getBytes(StandardCharsets.UTF_8);

        @Override
        public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
            byte[] value = (byte[]) record.value();
            int at = 0;
            while (!startsAt(value, at)) {
                at++;
            }
            long time = 0;
            for (int place = at + FIELD.length; Character.isDigit(value[place]); place++) {
                time = 10 * time + value[place] - '0';
            }
            return time;
        }

        private static boolean startsAt(byte[] value, int at) {
            for (int place = 0; place < FIELD.length; place++) {
                if (value[at + place] != FIELD[place]) {
                    return false;
                }
            }
            return true;
        }
    }

    private static final class Order implements Processor<byte[], byte[], byte[], byte[]> {
        private final long delayMs;
        private final Map<TopicPartition, Long> ends;
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<Bytes, byte[]> waiting;

        Order(long delayMs, Map<TopicPartition, Long> ends) {
            this.delayMs = delayMs;
            this.ends = ends;
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            waiting = context.getStateStore(STORE);
            context.schedule(
                    Duration.ofMillis(RELEASE_MS),
                    PunctuationType.WALL_CLOCK_TIME,
                    now -> release(context.currentStreamTimeMs() - delayMs));
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            var place = context.recordMetadata().orElseThrow();
            long offset = place.offset();
            if (record.timestamp() > context.currentStreamTimeMs() - delayMs) {
                waiting.put(ordered(record.timestamp(), offset), packed(record.key(), record.value()));
            }
            Long end = ends.get(new TopicPartition(place.topic(), place.partition()));
            if (end != null && offset == end - 1) {
                release(Long.MAX_VALUE - 1);
            }
        }

        private void release(long upToMs) {
            if (upToMs < 0) {
                return;
            }
            try (KeyValueIterator<Bytes, byte[]> due =
                    waiting.range(ordered(0, 0), ordered(upToMs + 1, 0))) {
                while (due.hasNext()) {
                    KeyValue<Bytes, byte[]> next = due.next();
                    long time = ByteBuffer.wrap(next.key.get()).getLong();
                    if (time <= upToMs) { // the range has its last key, too
                        forward(next.value, time);
                        waiting.delete(next.key);
                    }
                }
            }
        }

        private void forward(byte[] packed, long time) {
            ByteBuffer both = ByteBuffer.wrap(packed);
            byte[] key = new byte[both.getInt()];
            both.get(key);
            byte[] value = new byte[both.remaining()];
            both.get(value);
            context.forward(new Record<>(key, value, time));
        }

        private static Bytes ordered(long time, long offset) {
            return Bytes.wrap(ByteBuffer.allocate(2 * Long.BYTES).putLong(time).putLong(offset).array());
        }

        private static byte[] packed(byte[] key, byte[] value) {
            return ByteBuffer.allocate(Integer.BYTES + key.length + value.length)
                    .putInt(key.length)
                    .put(key)
                    .put(value)
                    .array();
        }
    }
}
