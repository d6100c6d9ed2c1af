import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** kafka-clients as a program: {@code Main NAME write|read|version ...}; tests/clients/programs.py describes the arguments. */
public final class Main {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        switch (arguments[1]) {
            case "write" -> write(arguments[2], arguments[3], arguments.length > 4 ? arguments[4] : "");
            case "read" -> read(arguments[2], arguments[3], arguments[4]);
            default -> System.out.println(AppInfoParser.getVersion());
        }
    }

    private static void write(String bootstrap, String topic, String ending) throws Exception {
        Map<String, Object> settings = new java.util.HashMap<>(Map.of("bootstrap.servers", bootstrap));
        if (!ending.isEmpty()) {
            settings.put("transactional.id", "clients-java-" + ProcessHandle.current().pid());
        }
        List<Future<RecordMetadata>> reports = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (!ending.isEmpty()) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (JsonNode record : lines()) {
                var made = new ProducerRecord<>(topic, bytes(record.get("key")), bytes(record.get("value")));
                for (JsonNode header : record.get("headers")) {
                    made.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                reports.add(producer.send(made));
            }
            producer.flush();
            for (Future<RecordMetadata> report : reports) {
                report.get();
            }
            if (ending.equals("commit")) {
                producer.commitTransaction();
            } else if (ending.equals("abort")) {
                producer.abortTransaction();
            }
        }
        System.out.println(JSON.writeValueAsString(Map.of("written", reports.size())));
    }

    private static void read(String bootstrap, String topic, String end) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "isolation.level", "read_committed", "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    String value = Base64.getEncoder().encodeToString(record.value());
                    System.out.println("{\"value\": \"" + value + "\"}");
                    if (new String(record.value(), StandardCharsets.UTF_8).equals(end)) {
                        return;
                    }
                }
            }
        }
    }

    private static List<JsonNode> lines() throws IOException {
        List<JsonNode> found = new ArrayList<>();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            found.add(JSON.readTree(line));
        }
        return found;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }
}
