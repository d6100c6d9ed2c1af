import com.example.chronos.ApiClient;
import com.example.chronos.api.DefaultApi;
import com.example.chronos.model.ActionResult;
import com.example.chronos.model.AcceptedOrList;
import com.example.chronos.model.Message;
import com.example.chronos.model.MessageInfo;
import com.example.chronos.model.MessageOrBatch;
import com.example.chronos.model.Page;
import com.example.chronos.model.Target;
import com.example.chronos.model.Time;
import java.time.OffsetDateTime;
import java.time.format.DateTimeFormatter;

/**
 * Schedules, finds and cancels a message with the client that openapi-generator makes:
 *
 * <pre>Main SERVER ID TOPIC</pre>
 *
 * Prints the result of each step on a line.
 */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        String id = arguments[1];
        String topic = arguments[2];
        ApiClient client = new ApiClient();
        client.setBasePath(arguments[0]);
        DefaultApi chronos = new DefaultApi(client);
        OffsetDateTime due = OffsetDateTime.now().plusHours(1);

        Message message = new Message()
                .id(id)
                .target(new Target().topic(topic))
                .value("from Java")
                .deliverAt(new Time(DateTimeFormatter.ISO_OFFSET_DATE_TIME.format(due)));
        AcceptedOrList scheduled = chronos.schedule(new MessageOrBatch(message), "5s", null);
        System.out.println(scheduled.getAccepted().getResult());

        MessageInfo found = chronos.get(id, null, null, null, null);
        System.out.println(found.getState());

        Page page = chronos.callList(
                null, topic, DateTimeFormatter.ISO_OFFSET_DATE_TIME.format(due.minusMinutes(1)), null, null, null, null, null, null, null, null, null, null);
        System.out.println(page.getMessages().stream().anyMatch(each -> each.getId().equals(id)));

        ActionResult cancelled = chronos.cancel(id, null, null);
        System.out.println(cancelled.getResult());
    }
}
