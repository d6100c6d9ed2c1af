package org.apache.kafka.common.utils;

import java.util.function.Supplier;
import org.apache.kafka.common.errors.TimeoutException;

/** Kafka's clock of the system, shifted: before Kafka's own class on the class path, it makes a broker with a wrong clock. */
public class SystemTime implements Time {
    /** How far it is ahead of the machine's clock at the start (ms). */
    private static final long AHEAD_MS = Long.getLong("chronos.clock.ahead_ms", 0);
    /** How much it gains (microseconds in a second). */
    private static final long DRIFT_PPM = Long.getLong("chronos.clock.drift_ppm", 0);
    private static final long BEGAN_MS = System.nanoTime() / 1_000_000;
    private static final SystemTime SYSTEM_TIME = new SystemTime();

    public static SystemTime getSystemTime() {
        return SYSTEM_TIME;
    }

    @Override
    public long milliseconds() {
        long runningMs = System.nanoTime() / 1_000_000 - BEGAN_MS;
        return System.currentTimeMillis() + AHEAD_MS + runningMs * DRIFT_PPM / 1_000_000;
    }

    @Override
    public long nanoseconds() {
        return System.nanoTime();
    }

    @Override
    public void sleep(long ms) {
        Utils.sleep(ms);
    }

    @Override
    public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs) throws InterruptedException {
        synchronized (obj) {
            while (!condition.get()) {
                long nowMs = milliseconds();
                if (nowMs >= deadlineMs) {
                    throw new TimeoutException("Condition not satisfied before deadline");
                }
                obj.wait(deadlineMs - nowMs);
            }
        }
    }
}
