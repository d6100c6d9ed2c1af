package main

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func writeFranz(bootstrap, topic string, records []record) error {
	producer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*kgo.Record
	for _, each := range records {
		message := &kgo.Record{Topic: topic, Key: each.Key, Value: each.Value}
		for _, pair := range each.Headers {
			message.Headers = append(message.Headers, kgo.RecordHeader{Key: pair.name, Value: pair.value})
		}
		messages = append(messages, message)
	}
	return producer.ProduceSync(context.Background(), messages...).FirstErr()
}

func readFranz(bootstrap, topic string, seen func([]byte) bool) error {
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for {
		fetches := consumer.PollFetches(context.Background())
		if errors := fetches.Errors(); len(errors) > 0 {
			return errors[0].Err
		}
		for records := fetches.RecordIter(); !records.Done(); {
			if !seen(records.Next().Value) {
				return nil
			}
		}
	}
}
