import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.RemotingSysResponseCode;

/**
 * Loads and reads RocketMQ for `scripts/bench --peers`: RocketMq write|read TASK
 *
 * TASK is JSON, as for ../go/main.go. Each message begins with its number and its due time (ms), 8 bytes each.
 */
public class RocketMq {
    private static final String TOPIC = "bench";
    private static final int UNDER_WAY = 500; // messages that wait for their answer at most
    private static final int PULLED = 1_000; // messages of one pull at most; a broker sends fewer by default

    public static void main(String[] arguments) {
        JSONObject task = JSON.parseObject(arguments[1]);
        try {
            Map<String, Object> result = arguments[0].equals("write") ? write(task) : read(task);
            System.out.println(JSON.toJSONString(result));
        } catch (Exception error) {
            fail(error); // threads of the client would keep the process alive
        }
        System.exit(0);
    }

    private static long dueMs(JSONObject task, int number, long nowMs) {
        long due = task.getLongValue("due_ms");
        long lowest = task.getLongValue("lowest_ms");
        return due > 0 ? due : nowMs + lowest + number * 7_919L % (task.getLongValue("highest_ms") - lowest + 1);
    }

    private static Map<String, Object> write(JSONObject task) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("writer");
        producer.setNamesrvAddr(task.getString("server"));
        producer.start();
        producer.fetchPublishMessageQueues(TOPIC);
        int count = task.getIntValue("count");
        int rate = task.getIntValue("rate");
        Semaphore room = new Semaphore(UNDER_WAY);
        long start = System.nanoTime();
        for (int number = 0; number < count; ) {
            double elapsedS = (System.nanoTime() - start) / 1e9;
            int until = rate > 0 ? (int) Math.min(count, elapsedS * rate) : count;
            if (until <= number) {
                Thread.sleep(1);
                continue;
            }
            for (long nowMs = System.currentTimeMillis(); number < until; number++) {
                long due = dueMs(task, number, nowMs);
                byte[] value = ByteBuffer.allocate(task.getIntValue("bytes")).putLong(number).putLong(due).array();
                Message message = new Message(TOPIC, value);
                message.setDeliverTimeMs(due);
                room.acquire();
                send(producer, message, room);
            }
        }
        room.acquire(UNDER_WAY);
        return Map.of("accepted_s", (System.nanoTime() - start) / 1e9);
    }

    /** Send until the broker has stored it: a busy broker asks to be tried again. */
    private static void send(DefaultMQProducer producer, Message message, Semaphore room) {
        SendCallback answered = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) fail(new IllegalStateException(result.toString()));
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                boolean isBusy = error instanceof MQBrokerException refused
                        && refused.getResponseCode() == RemotingSysResponseCode.SYSTEM_BUSY;
                if (isBusy) send(producer, message, room);
                else fail(error);
            }
        };
        try {
            producer.send(message, answered);
        } catch (Exception error) {
            fail(error);
        }
    }

    private static Map<String, Object> read(JSONObject task) throws Exception {
        Seen seen = new Seen(task.getIntValue("count"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("reader");
        consumer.setNamesrvAddr(task.getString("server"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(PULLED);
        consumer.setConsumeMessageBatchMaxSize(PULLED);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(ByteBuffer.wrap(message.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        seen.all.await((long) (task.getDoubleValue("timeout_s") * 1_000), TimeUnit.MILLISECONDS);
        return seen.result();
    }

    /** The messages that the reader received. */
    private static class Seen {
        final CountDownLatch all = new CountDownLatch(1);
        private final int[] times;
        private double[] lateMs;
        private int received;
        private int early;
        private int duplicated;

        Seen(int count) {
            times = new int[count];
            lateMs = new double[count];
        }

        synchronized void add(ByteBuffer value) {
            int number = (int) value.getLong();
            double late = System.currentTimeMillis() - value.getLong();
            if (late < 0) early++;
            if (received == lateMs.length) lateMs = Arrays.copyOf(lateMs, 2 * received + 1);
            lateMs[received++] = late;
            if (++times[number] > 1) duplicated++;
            else if (received - duplicated == times.length) all.countDown();
        }

        synchronized Map<String, Object> result() {
            double[] sorted = Arrays.copyOf(lateMs, received);
            Arrays.sort(sorted);
            return Map.of(
                    "p50", at(sorted, 0.5), "p99", at(sorted, 0.99), "max", at(sorted, 1), "early", early,
                    "duplicated", duplicated, "lost", times.length - (received - duplicated));
        }

        private static double at(double[] sorted, double share) {
            return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (share * sorted.length))];
        }
    }

    private static void fail(Throwable error) {
        error.printStackTrace();
        System.exit(1);
    }
}
