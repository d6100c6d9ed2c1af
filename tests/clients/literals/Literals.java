import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.Date;

/** Prints how java.time writes times and durations: kind, milliseconds (rounded up), expression, text. */
public class Literals {
    static void print(String kind, long seconds, long nanos, String expression, Object value) {
        System.out.println(kind + "\t" + (seconds * 1000 + (nanos + 999_999) / 1_000_000) + "\t" + expression + "\t" + value);
    }

    public static void main(String[] arguments) {
        for (long[] parts : new long[][] {{1796071380, 0}, {1796071385, 0}, {1796071385, 500_000_000}, {1796071380, 1}}) {
            Instant at = Instant.ofEpochSecond(parts[0], parts[1]);
            print("time", parts[0], parts[1], "Instant.toString", at);
            print("time", parts[0], parts[1], "OffsetDateTime.toString, UTC", at.atOffset(ZoneOffset.UTC));
            print("time", parts[0], parts[1], "OffsetDateTime.toString, +05:30", at.atOffset(ZoneOffset.ofHoursMinutes(5, 30)));
            print("time", parts[0], parts[1], "ZonedDateTime.toString", at.atZone(ZoneId.of("Europe/Berlin")));
            print("time", parts[0], parts[1], "ZonedDateTime.toString, UTC", at.atZone(ZoneId.of("UTC")));
            print("time", parts[0], parts[1], "ZonedDateTime.toString, ZoneOffset", at.atZone(ZoneOffset.ofHours(-3)));
        }
        OffsetDateTime whole = OffsetDateTime.of(2026, 12, 1, 9, 0, 0, 0, ZoneOffset.ofHours(1));
        print("time", whole.toEpochSecond(), 0, "OffsetDateTime.toString, on the hour", whole);
        print("refused", 0, 0, "LocalDateTime.toString", whole.toLocalDateTime());
        print("refused", 0, 0, "Date.toString", Date.from(whole.toInstant()));
        print("refused", 0, 0, "Period.toString", java.time.Period.of(1, 2, 3));
        print("refused", 0, 0, "Duration.toString, negative", Duration.ofHours(-6));
        for (long[] parts : new long[][] {{0, 0}, {0, 1}, {0, 1_500_000}, {1, 0}, {90, 500_000_000}, {3600, 0}, {93784, 500_000_000}, {2678400, 0}}) {
            print("duration", parts[0], parts[1], "Duration.toString", Duration.ofSeconds(parts[0], parts[1]));
        }
    }
}
