package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	underWay = 10_000 // messages that wait for their acknowledgement at most
	batch    = 5_000  // messages of one pull
)

// stream opens the stream of the benchmark: scheduled messages have a subject each, and are all handed to `out`.
func stream(ctx context.Context, t task) (*nats.Conn, jetstream.JetStream, jetstream.Stream) {
	connection, err := nats.Connect(t.Server)
	fail(err)
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(underWay))
	fail(err)
	found, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "bench", Subjects: []string{"due.>", "out"}, Storage: jetstream.FileStorage,
		AllowMsgSchedules: true, AllowMsgTTL: true,
	})
	fail(err)
	return connection, js, found
}

func natsWrite(t task) map[string]float64 {
	connection, js, _ := stream(context.Background(), t)
	defer connection.Close()
	start := time.Now()
	t.pace(func(number int, dueMs int64) {
		message := nats.NewMsg(fmt.Sprintf("due.%d", number))
		message.Header.Set("Nats-Schedule", "@at "+time.UnixMilli(dueMs).UTC().Format("2006-01-02T15:04:05.000Z"))
		message.Header.Set("Nats-Schedule-Target", "out")
		message.Data = payload(number, dueMs, t.Bytes)
		_, err := js.PublishMsgAsync(message, jetstream.WithStallWait(time.Minute))
		fail(err)
	})
	<-js.PublishAsyncComplete()
	return map[string]float64{"accepted_s": time.Since(start).Seconds()}
}

func natsRead(t task) map[string]float64 {
	connection, _, found := stream(context.Background(), t)
	defer connection.Close()
	subjects := jetstream.OrderedConsumerConfig{FilterSubjects: []string{"out"}}
	consumer, err := found.OrderedConsumer(context.Background(), subjects)
	fail(err)
	received := newSeen(t.Count)
	consuming, err := consumer.Consume(func(message jetstream.Msg) { received.add(message.Data()) }, jetstream.PullMaxMessages(batch))
	fail(err)
	defer consuming.Stop()
	return received.result(t.deadline())
}
